package verniermq.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer that leaves the sharing of queues to the broker, which then tells it to pop. Message number
 * {@code --fail} fails at its first delivery.
 */
final class Pop {
    static int run(Options options, JsonLines out) throws Exception {
        Expectation expectation = new Expectation(options.number("start", 0), options.number("expect"), "*");
        int failing = options.number("fail", -1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(1000);
        // 4.9 has no such setting; it cannot pop.
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                int index = Consume.index(message);
                Consume.report(message, "popper", out);
                if (index == failing && message.getReconsumeTimes() == 0) {
                    out.write("failing", "index", index, "handle", message.getProperty("POP_CK"));
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                expectation.received(index);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Shutdown.onSignal(consumer::shutdown);
        consumer.start();
        out.write("started");

        boolean complete = expectation.await(options.number("timeout") * 1000L);
        Thread.sleep(options.number("linger-ms", 500));
        Shutdown.close(consumer::shutdown);
        expectation.summarise(out);
        return complete ? 0 : 1;
    }

    private Pop() {
    }
}
