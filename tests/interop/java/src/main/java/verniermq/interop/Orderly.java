package verniermq.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** One member of a group that consumes in order, slowly, until it is told to stop or killed. */
final class Orderly {
    static int run(Options options, JsonLines out) throws Exception {
        int pause = options.number("pause-ms", 10);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(3000);
        consumer.setMqClientApiTimeout(20_000);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                out.write("received", "index", Consume.index(message), "queueId", message.getQueueId(),
                    "queueOffset", message.getQueueOffset(), "at", System.currentTimeMillis());
                pause(pause);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        Shutdown.onSignal(consumer::shutdown);
        consumer.start();
        out.write("started");
        Thread.sleep(options.number("timeout") * 1000L);
        return 1;
    }

    private static void pause(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private Orderly() {
    }
}
