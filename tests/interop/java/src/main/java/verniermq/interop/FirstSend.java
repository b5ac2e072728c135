package verniermq.interop;

import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Tries to send until a broker that is being started acknowledges it; {@code waiting} says that it has begun. */
final class FirstSend {
    static int run(Options options, JsonLines out) throws Exception {
        DefaultMQProducer producer = LoadClients.producer(options);
        byte[] body = LoadClients.body(options);
        out.write("waiting");
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(options.number("timeout"));
        int tries = 0;
        while (true) {
            tries++;
            try {
                producer.send(new Message(options.text("topic"), body));
                break;
            } catch (Exception notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
                Thread.sleep(5);
            }
        }
        out.write("result", "tries", tries);
        LoadClients.close(producer::shutdown);
        return 0;
    }

    private FirstSend() {
    }
}
