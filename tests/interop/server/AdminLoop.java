import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs Apache's mqadmin many times in one virtual machine: a line of tab-separated arguments in, what the command
 * printed out, then a line with a mark. Starting a virtual machine for each command would take most of the time.
 */
public final class AdminLoop {
    public static void main(String[] unused) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                MQAdminStartup.main0(line.split("\t"), null);
            } catch (Throwable error) {
                error.printStackTrace(System.out);
            }
            // Not every command ends its last line, and the mark has to be alone on its own.
            System.out.println();
            System.out.println("--- done ---");
            System.out.flush();
        }
        System.exit(0);
    }
}
