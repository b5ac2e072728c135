package verniermq.interop;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Fills a store with messages of all sorts: single ones and a batch to one topic, some that arrive later, by level or at
 * a time, single ones to many other topics, and a few that a consumer gives back to be delivered again.
 */
final class Write {
    // Long enough that the broker has stopped before, and the other one has to deliver them.
    private static final int DELAY_LEVEL = 3;
    private static final long TIMED_MS = 12_000;

    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        int next = options.number("start");
        DefaultMQProducer producer = new DefaultMQProducer("writers");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.start();

        List<SendResult> results = new ArrayList<>();
        for (int end = next + options.number("singles"); next < end; next++) {
            results.add(producer.send(message(topic, next)));
            if (results.size() == 1) {
                out.write("started");
            }
        }
        List<Message> batch = new ArrayList<>();
        for (int end = next + options.number("batch"); next < end; next++) {
            batch.add(message(topic, next));
        }
        if (!batch.isEmpty()) {
            results.add(producer.send(batch));
        }
        for (int end = next + options.number("delayed", 0); next < end; next++) {
            Message message = message(topic, next);
            message.setDelayTimeLevel(DELAY_LEVEL);
            results.add(producer.send(message));
        }
        for (int end = next + options.number("timed", 0); next < end; next++) {
            Message message = message(topic, next);
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", Long.toString(System.currentTimeMillis() + TIMED_MS));
            results.add(producer.send(message));
        }
        String[] others = options.text("others").split(",");
        int first = options.number("others-start");
        for (int index = first; index < first + options.number("others-count"); index++) {
            results.add(producer.send(message(others[index % others.length], index)));
        }
        Shutdown.close(producer::shutdown);
        for (SendResult result : results) {
            out.write("sent", "status", result.getSendStatus(), "msgId", result.getMsgId());
        }
        if (!options.text("retry-group", "").isEmpty()) {
            giveBack(options, out);
        }
        return 0;
    }

    /** The first message of each queue of a topic, returned as a consumer does that could not process it. */
    private static void giveBack(Options options, JsonLines out) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("retry-group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
            PullResult pulled = consumer.pull(queue, "*", consumer.minOffset(queue), 1);
            for (MessageExt message : pulled.getMsgFoundList()) {
                consumer.sendMessageBack(message, 1, queue.getBrokerName());
                out.write("returned", "index", Consume.index(message));
            }
        }
        Shutdown.close(consumer::shutdown);
    }

    private static Message message(String topic, int index) {
        Message message = new Message(topic, Sample.tag(index), Sample.key(index), Sample.body(index));
        message.putUserProperty("index", Integer.toString(index));
        message.putUserProperty("text", Sample.text(index));
        return message;
    }

    private Write() {
    }
}
