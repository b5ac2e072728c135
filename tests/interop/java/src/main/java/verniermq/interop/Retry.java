package verniermq.interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A consumer whose handler fails on one message until it is dead, and takes the others. With {@code --orderly true}
 * it does so in order, where the client tries again by itself and gives the message up through the retry topic.
 */
final class Retry {
    static int run(Options options, JsonLines out) throws Exception {
        int poison = options.number("poison");
        int attempts = options.number("attempts");
        CountDownLatch missing = new CountDownLatch(attempts + options.number("expect") - 1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(3000);
        // The group's retry topic appears with its first heartbeat. By default the client looks 30 s later, and takes
        // its queues up to 20 s after that.
        consumer.setPollNameServerInterval(1000);
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        consumer.setMqClientApiTimeout(20_000);
        consumer.setMaxReconsumeTimes(attempts - 1);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(options.text("topic"), "*");
        if (Boolean.parseBoolean(options.text("orderly", "false"))) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                succeeds(messages.get(0), poison, missing, out)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                succeeds(messages.get(0), poison, missing, out)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        out.write("started");
        boolean complete = missing.await(options.number("timeout"), TimeUnit.SECONDS);
        Thread.sleep(options.number("linger-ms", 2500));
        Shutdown.close(consumer::shutdown);
        return complete ? 0 : 1;
    }

    private static boolean succeeds(MessageExt message, int poison, CountDownLatch missing, JsonLines out) {
        int index = Consume.index(message);
        out.write("attempt", "index", index, "times", message.getReconsumeTimes(), "topic", message.getTopic(),
            "at", System.currentTimeMillis(), "msgId", message.getMsgId());
        missing.countDown();
        return index != poison;
    }

    private Retry() {
    }
}
