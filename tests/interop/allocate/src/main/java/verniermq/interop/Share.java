package verniermq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One member of a group per strategy, until standard input ends. It says what it owns whenever that changes, and
 * what it receives: {@code {"event": "owns", "strategy": name, "queues": [...]}} and {@code "received"} with the key.
 */
public final class Share {

    private static final PrintStream OUT = System.out;

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[1];
        String broker = arguments[2];
        System.setOut(System.err);
        Map<String, DefaultMQPushConsumer> members = new LinkedHashMap<>();
        for (Map.Entry<String, AllocateMessageQueueStrategy> entry : strategies(topic, broker).entrySet()) {
            members.put(entry.getKey(), member(namesrv, topic, entry.getKey(), entry.getValue()));
        }
        Map<String, Set<Integer>> said = new ConcurrentHashMap<>();
        while (System.in.available() == 0) {
            members.forEach((strategy, member) -> sayWhatItOwns(topic, strategy, member, said));
            Thread.sleep(200);
        }
        members.values().forEach(DefaultMQPushConsumer::shutdown);
        System.exit(0);
    }

    private static Map<String, AllocateMessageQueueStrategy> strategies(String topic, String broker) {
        AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
        byRoom.setConsumeridcs(Set.of("room1"));
        AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
        List<MessageQueue> lowerHalf = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            lowerHalf.add(new MessageQueue(topic, broker, number));
        }
        byConfig.setMessageQueueList(lowerHalf);
        Map<String, AllocateMessageQueueStrategy> strategies = new LinkedHashMap<>();
        strategies.put("AVG", new AllocateMessageQueueAveragely());
        strategies.put("AVG_BY_CIRCLE", new AllocateMessageQueueAveragelyByCircle());
        strategies.put("CONSISTENT_HASH", new AllocateMessageQueueConsistentHash());
        strategies.put("MACHINE_ROOM", byRoom);
        strategies.put("MACHINE_ROOM_NEARBY-AVG",
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new OneRoom()));
        strategies.put("CONFIG", byConfig);
        return strategies;
    }

    private static DefaultMQPushConsumer member(
        String namesrv, String topic, String strategy, AllocateMessageQueueStrategy allocate) throws Exception {
        DefaultMQPushConsumer member = new DefaultMQPushConsumer("mixed-" + strategy);
        member.setNamesrvAddr(namesrv);
        member.setInstanceName("java-" + strategy);
        member.setAllocateMessageQueueStrategy(allocate);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.setHeartbeatBrokerInterval(3000);
        member.subscribe(topic, "*");
        member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("received", strategy, new JSONObject().fluentPut("key", message.getKeys()));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        member.start();
        return member;
    }

    private static void sayWhatItOwns(
        String topic, String strategy, DefaultMQPushConsumer member, Map<String, Set<Integer>> said) {
        Set<Integer> owned = new TreeSet<>();
        for (MessageQueue queue
            : member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(topic)) {
                owned.add(queue.getQueueId());
            }
        }
        if (!owned.equals(said.put(strategy, owned))) {
            say("owns", strategy, new JSONObject().fluentPut("queues", owned));
        }
    }

    private static void say(String event, String strategy, JSONObject what) {
        byte[] line = (what.fluentPut("event", event).fluentPut("strategy", strategy).toJSONString() + "\n")
            .getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(line, 0, line.length);
            OUT.flush();
        }
    }

    private static final class OneRoom implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return "room1";
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return "room1";
        }
    }

    private Share() {
    }
}
