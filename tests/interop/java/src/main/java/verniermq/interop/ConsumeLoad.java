package verniermq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Consumers of one group that read a backlog. Each has its share of the queues from the beginning on and holds its first
 * messages back until all are there, so that neither starting nor rebalancing is part of the figure.
 */
final class ConsumeLoad {
    /** One message per call would measure the client's threads. */
    private static final int MESSAGES_PER_CALL = 32;

    static int run(Options options, JsonLines out) throws Exception {
        int members = options.number("members");
        int share = options.number("queues") / members;
        long count = options.number("count");
        AtomicLong seen = new AtomicLong();
        AtomicLong ended = new AtomicLong();
        CountDownLatch begin = new CountDownLatch(1);
        CountDownLatch enough = new CountDownLatch(1);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        String group = LoadClients.uniqueName();
        for (int number = 0; number < members; number++) {
            DefaultMQPushConsumer consumer = LoadClients.consumer(options, group);
            consumer.setConsumeMessageBatchMaxSize(MESSAGES_PER_CALL);
            consumer.setAllocateMessageQueueStrategy(new EachItsOwn(number, members));
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                awaitQuietly(begin);
                if (seen.addAndGet(messages.size()) >= count && ended.compareAndSet(0, System.nanoTime())) {
                    enough.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!consumers.stream().allMatch(consumer -> queuesOf(consumer) == share)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the consumers did not get " + share + " queues each");
            }
            Thread.sleep(10);
        }
        long started = System.nanoTime();
        begin.countDown();
        boolean complete = enough.await(options.number("timeout"), TimeUnit.SECONDS);
        long end = complete ? ended.get() : System.nanoTime();
        double rate = Math.min(seen.get(), count) * 1e9 / (end - started);
        consumers.forEach(consumer -> LoadClients.close(consumer::shutdown));
        out.write("result", "rate", rate, "done", seen.get(), "failed", Math.max(0, count - seen.get()), "error", null);
        return 0;
    }

    static int queuesOf(DefaultMQPushConsumer consumer) {
        String retries = "%RETRY%";
        return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> !queue.getTopic().startsWith(retries)).count();
    }

    private static void awaitQuietly(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    /** Every {@code members}-th queue, whoever else is in the group. */
    private static final class EachItsOwn implements AllocateMessageQueueStrategy {
        private final int number;
        private final int members;

        EachItsOwn(int number, int members) {
            this.number = number;
            this.members = members;
        }

        @Override
        public List<MessageQueue> allocate(
            String group, String clientId, List<MessageQueue> queues, List<String> clients) {
            return queues.stream().filter(queue -> queue.getQueueId() % members == number).collect(Collectors.toList());
        }

        @Override
        public String getName() {
            return "EACH_ITS_OWN";
        }
    }

    private ConsumeLoad() {
    }
}
