package verniermq.interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** One client answers every question on a topic, another asks {@code --count} of them and waits for the answers. */
final class RequestReply {
    static int run(Options options, JsonLines out) throws Exception {
        DefaultMQProducer replier = producer("repliers", options);
        DefaultMQPushConsumer answering = new DefaultMQPushConsumer(options.text("group"));
        answering.setNamesrvAddr(options.text("namesrv"));
        answering.setHeartbeatBrokerInterval(1000);
        answering.subscribe(options.text("topic"), "*");
        answering.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt question : messages) {
                try {
                    byte[] answer = ("answer to " + text(question)).getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(question, answer);
                    out.write("replied", "status", replier.send(reply, 5000).getSendStatus());
                } catch (Exception error) {
                    out.write("failed", "error", error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        answering.start();

        DefaultMQProducer asker = producer("askers", options);
        for (int number = 0; number < options.number("count"); number++) {
            byte[] question = ("question " + number).getBytes(StandardCharsets.UTF_8);
            Message answer = asker.request(new Message(options.text("topic"), question), 20000);
            out.write("answered", "question", "question " + number, "answer", text(answer));
        }
        Shutdown.close(asker::shutdown, answering::shutdown, replier::shutdown);
        return 0;
    }

    private static DefaultMQProducer producer(String group, Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(group);
        producer.start();
        return producer;
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private RequestReply() {
    }
}
