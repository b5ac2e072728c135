package verniermq.interop;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends one message in a transaction for each of {@code --outcomes} (commit, rollback or unknown), then stays for a
 * while and gives {@code --answer} to every question of the broker.
 */
final class Transaction {
    static int run(Options options, JsonLines out) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        // Two producers of one group on one machine: each needs a client id of its own.
        producer.setInstanceName("producer-" + ProcessHandle.current().pid());
        producer.setHeartbeatBrokerInterval(1000);
        LocalTransactionState answer = state(options.text("answer"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
                return state((String) outcome);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                out.write("checked", "index", Integer.parseInt(message.getUserProperty("index")),
                    "topic", message.getTopic(), "transactionId", message.getTransactionId(), "answer", answer);
                return answer;
            }
        });
        Shutdown.onSignal(producer::shutdown);
        producer.start();

        String topic = options.text("topic");
        int index = options.number("start", 0);
        for (String outcome : options.text("outcomes", "").split(",")) {
            if (outcome.isEmpty()) {
                continue;
            }
            TransactionSendResult result = producer.sendMessageInTransaction(Produce.message(topic, index), outcome);
            out.write("sent", "index", index, "status", result.getSendStatus(), "msgId", result.getMsgId(),
                "transactionId", result.getTransactionId(), "state", result.getLocalTransactionState());
            index++;
        }
        out.write("all-sent");
        Thread.sleep(options.number("stay") * 1000L);
        Shutdown.close(producer::shutdown);
        return 0;
    }

    private static LocalTransactionState state(String outcome) {
        switch (outcome) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private Transaction() {
    }
}
