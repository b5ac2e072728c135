package shop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A broker for tests: {@code pip install verniermq} brings the command. It ends when the test run does. */
final class VernierMQ implements AutoCloseable {
    private final Process process;
    private final BufferedReader answers;
    private final PrintStream commands;
    final String namesrv;

    VernierMQ() throws IOException {
        String store = Files.createTempDirectory("verniermq").toString();
        process = new ProcessBuilder(
                "verniermq", "broker", "--for-tests", "--port", "0", "--namesrv-port", "0", "--store", store)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
        answers = new BufferedReader(new InputStreamReader(process.getInputStream()));
        commands = new PrintStream(process.getOutputStream(), true);
        String line = answers.readLine();
        Matcher ready = Pattern.compile("\"namesrv\":\"([^\"]+)\"").matcher(line == null ? "" : line);
        if (!ready.find()) {
            throw new IOException("the broker did not start; its standard error says why");
        }
        namesrv = ready.group(1);
    }

    /** Lets the broker believe that so much time has passed: delays, retries and checks come at once. */
    void advance(int seconds) throws IOException {
        ask("advance " + seconds);
    }

    /** Empties it: no message, topic or group is left. */
    void reset() throws IOException {
        ask("reset");
    }

    @Override
    public void close() throws InterruptedException {
        commands.println("stop");
        process.waitFor();
    }

    private void ask(String command) throws IOException {
        commands.println(command);
        answers.readLine();
    }
}
