package verniermq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a consumer at a broker that refuses part of what they ask for. Each send is tried by the client as it
 * sees fit, and by this program until it was taken; then all of it has to arrive.
 */
public final class Backoff {

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        PrintStream out = System.out;
        System.setOut(System.err);

        DefaultMQProducer producer = new DefaultMQProducer("eager-producers");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        int refused = 0;
        Set<Integer> codes = new HashSet<>();
        for (int index = 0; index < count;) {
            try {
                byte[] body = ("message " + index).getBytes(StandardCharsets.UTF_8);
                producer.send(new Message(topic, "tag", "key-" + index, body));
                index++;
            } catch (MQClientException error) {
                refused++;
                codes.add(error.getResponseCode());
                Thread.sleep(50);
            }
        }
        producer.shutdown();

        Set<String> received = Collections.synchronizedSet(new HashSet<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("eager-consumers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(1);
        consumer.setHeartbeatBrokerInterval(3000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                received.add(message.getKeys());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (received.size() < count && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        consumer.shutdown();
        JSONObject summary = new JSONObject()
            .fluentPut("refused", refused).fluentPut("codes", codes).fluentPut("received", received.size());
        out.println(summary.toJSONString());
        out.flush();
        System.exit(0);
    }

    private Backoff() {
    }
}
