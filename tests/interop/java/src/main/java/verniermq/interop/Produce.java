package verniermq.interop;

import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends messages number {@code start} to {@code start + count - 1}, each after the answer to the one before. */
final class Produce {
    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        int start = options.number("start", 0);
        int count = options.number("count");
        String traceparent = options.text("traceparent", "");
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group"), Signing.hook(options));
        producer.setNamesrvAddr(options.text("namesrv"));
        AtomicBoolean stopped = Shutdown.onSignal(producer::shutdown);
        producer.start();

        int sent = 0;
        int failed = 0;
        for (int index = start; index < start + count && !stopped.get(); index++) {
            try {
                Message message = message(topic, index);
                if (!traceparent.isEmpty()) {
                    message.putUserProperty("traceparent", traceparent);
                }
                SendResult result = producer.send(message);
                out.write("sent", "index", index, "msgId", result.getMsgId(),
                    "queueId", result.getMessageQueue().getQueueId(),
                    "queueOffset", result.getQueueOffset(), "status", result.getSendStatus());
                sent++;
            } catch (Exception error) {
                out.write("failed", "index", index, "error", error, "cause", error.getCause());
                failed++;
            }
        }
        Shutdown.close(producer::shutdown);
        out.write("summary", "sent", sent, "failed", failed);
        return sent == count ? 0 : 1;
    }

    static Message message(String topic, int index) {
        Message message = new Message(topic, Sample.tag(index), Sample.key(index), Sample.body(index));
        message.putUserProperty("index", Integer.toString(index));
        message.putUserProperty("text", Sample.text(index));
        return message;
    }

    private Produce() {
    }
}
