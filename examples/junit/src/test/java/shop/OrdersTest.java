package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class OrdersTest {
    static VernierMQ broker;

    @BeforeAll
    static void start() throws Exception {
        broker = new VernierMQ();
    }

    @AfterAll
    static void stop() throws Exception {
        broker.close();
    }

    @BeforeEach
    void empty() throws Exception {
        broker.reset();
    }

    @Test
    void anOrderIsAnnounced() throws Exception {
        assertEquals(SendStatus.SEND_OK, send("order 7", 0));

        assertEquals("order 7", firstMessage());
    }

    @Test
    void theReminderComesTwoHoursLater() throws Exception {
        send("pay order 8", 18);
        broker.advance(2 * 3600 + 2);

        assertEquals("pay order 8", firstMessage());
    }

    private SendStatus send(String body, int delayLevel) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(broker.namesrv);
        producer.start();
        try {
            Message message = new Message("orders", body.getBytes(StandardCharsets.UTF_8));
            message.setDelayTimeLevel(delayLevel);
            return producer.send(message).getSendStatus();
        } finally {
            producer.shutdown();
        }
    }

    private String firstMessage() throws Exception {
        BlockingQueue<String> bodies = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("tests");
        consumer.setNamesrvAddr(broker.namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("orders", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            return bodies.poll(60, TimeUnit.SECONDS);
        } finally {
            consumer.shutdown();
        }
    }
}
