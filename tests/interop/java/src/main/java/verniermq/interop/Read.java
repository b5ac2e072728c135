package verniermq.interop;

import java.util.Arrays;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every message of some topics, queue by queue, from the first offset to the last, without committing anything. */
final class Read {
    static int run(Options options, JsonLines out) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("inspectors");
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        for (String topic : options.text("topics").split(",")) {
            for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(topic))) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                out.write("queue", "topic", topic, "queueId", queue.getQueueId(), "min", offset, "max", end);
                while (offset < end) {
                    PullResult pulled = consumer.pull(queue, "*", offset, 32);
                    if (pulled.getPullStatus() == PullStatus.FOUND) {
                        pulled.getMsgFoundList().forEach(message -> report(topic, message, out));
                    }
                    offset = pulled.getNextBeginOffset();
                }
            }
        }
        Shutdown.close(consumer::shutdown);
        return 0;
    }

    private static void report(String topic, MessageExt message, JsonLines out) {
        int index = Consume.index(message);
        out.write("message", "topic", topic, "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
            "index", index, "key", message.getKeys(), "tag", message.getTags(),
            "textOk", Sample.text(index).equals(message.getUserProperty("text")),
            "bodyOk", Arrays.equals(Sample.body(index), message.getBody()),
            "msgId", message.getMsgId(), "commitLogOffset", message.getCommitLogOffset(),
            "storeTimestamp", message.getStoreTimestamp(), "bornTimestamp", message.getBornTimestamp(),
            "reconsumeTimes", message.getReconsumeTimes());
    }

    private Read() {
    }
}
