package verniermq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Answers one allocation per line of JSON: {@code {"queues": [[topic, broker, number], ...]}}, or
 * {@code {"error": text}} when the strategy throws. The answer repeats the name that the strategy gives itself.
 */
public final class Allocate {

    private static final String NEARBY = "MACHINE_ROOM_NEARBY-";

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(JSON.parseObject(line)).toJSONString());
        }
        out.flush();
    }

    private static JSONObject answer(JSONObject question) {
        JSONObject answer = new JSONObject();
        AllocateMessageQueueStrategy strategy = strategy(question.getString("strategy"), question);
        answer.put("name", strategy.getName());
        try {
            List<MessageQueue> allocated = strategy.allocate(
                "group", question.getString("client"), queues(question, "queues"), texts(question, "clients"));
            JSONArray found = new JSONArray();
            for (MessageQueue queue : allocated) {
                found.add(JSONArray.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
            }
            answer.put("queues", found);
        } catch (IllegalArgumentException refused) {
            answer.put("error", refused.getMessage());
        }
        return answer;
    }

    private static AllocateMessageQueueStrategy strategy(String name, JSONObject question) {
        if (name.startsWith(NEARBY)) {
            return new AllocateMachineRoomNearby(strategy(name.substring(NEARBY.length()), question), new Prefix());
        }
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(question.getIntValue("virtual_nodes"));
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
                room.setConsumeridcs(new HashSet<>(texts(question, "rooms")));
                return room;
            case "CONFIG":
                AllocateMessageQueueByConfig fixed = new AllocateMessageQueueByConfig();
                fixed.setMessageQueueList(queues(question, "fixed"));
                return fixed;
            default:
                throw new IllegalStateException("no strategy " + name);
        }
    }

    private static List<MessageQueue> queues(JSONObject question, String key) {
        List<MessageQueue> queues = new ArrayList<>();
        JSONArray written = question.getJSONArray(key);
        for (int i = 0; i < written.size(); i++) {
            JSONArray one = written.getJSONArray(i);
            queues.add(new MessageQueue(one.getString(0), one.getString(1), one.getIntValue(2)));
        }
        return queues;
    }

    private static List<String> texts(JSONObject question, String key) {
        return new ArrayList<>(question.getList(key, String.class));
    }

    /** The room is what stands before the first "-"; without one there is no room. */
    private static final class Prefix implements AllocateMachineRoomNearby.MachineRoomResolver {

        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return room(queue.getBrokerName());
        }

        @Override
        public String consumerDeployIn(String client) {
            return room(client);
        }

        private static String room(String name) {
            int dash = name.indexOf('-');
            return dash < 0 ? "" : name.substring(0, dash);
        }
    }
}
