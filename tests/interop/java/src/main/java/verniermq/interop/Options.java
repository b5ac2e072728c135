package verniermq.interop;

import java.util.HashMap;
import java.util.Map;

/** The {@code --name value} pairs of a command line. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    static Options parse(String[] args) {
        Options options = new Options();
        for (int i = 0; i < args.length; i += 2) {
            if (!args[i].startsWith("--") || i + 1 == args.length) {
                throw new IllegalArgumentException("expected --name value, got " + args[i]);
            }
            options.values.put(args[i].substring(2), args[i + 1]);
        }
        return options;
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is required");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? number(name) : otherwise;
    }
}
