package verniermq.interop;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;

/** Standard output as one JSON object per line, safe to use from several threads. */
final class JsonLines {
    private final PrintStream stream;

    private JsonLines(PrintStream stream) {
        this.stream = stream;
    }

    /** From here on whatever else prints, a logger's start-up for one, goes to standard error. */
    static JsonLines takeStandardOutput() throws java.io.IOException {
        FileOutputStream descriptor = new FileOutputStream(FileDescriptor.out);
        PrintStream stream = new PrintStream(descriptor, true, StandardCharsets.UTF_8.name());
        System.setOut(System.err);
        return new JsonLines(stream);
    }

    /** Write {@code {"event": event, name: value, …}}. */
    synchronized void write(String event, Object... namesAndValues) {
        StringBuilder line = new StringBuilder("{\"event\":").append(encode(event));
        for (int i = 0; i < namesAndValues.length; i += 2) {
            line.append(',').append(encode(namesAndValues[i])).append(':').append(encode(namesAndValues[i + 1]));
        }
        stream.println(line.append('}'));
    }

    private static String encode(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        StringBuilder text = new StringBuilder();
        if (value instanceof Collection) {
            for (Object item : (Collection<?>) value) {
                text.append(text.length() == 0 ? "" : ",").append(encode(item));
            }
            return "[" + text + "]";
        }
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        return "\"" + text + "\"";
    }
}
