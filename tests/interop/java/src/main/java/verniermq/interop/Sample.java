package verniermq.interop;

import java.nio.charset.StandardCharsets;

/**
 * Message number i, made from i alone, so that any client can check what any other sent.
 * The README's table is the contract; the Go and Node drivers build the same bytes.
 */
final class Sample {
    private static final String[] TAGS = {"TagA", "TagB", "TagC"};

    static String key(int index) {
        return "key-" + index;
    }

    static String tag(int index) {
        return TAGS[index % TAGS.length];
    }

    static String text(int index) {
        return "Grüße 消息 🚀 №" + index;
    }

    /** Every tenth body is long enough (over 4 KiB) that clients compress it. */
    static byte[] body(int index) {
        int size = index % 10 == 0 ? 5000 + index % 1000 : 64 + index % 200;
        byte[] unit = ("message " + index + ";").getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = unit[i % unit.length];
        }
        return body;
    }

    /** Whether a subscription such as {@code "TagA || TagC"} or {@code "*"} lets message number {@code index} through. */
    static boolean matches(String tags, int index) {
        if (tags.equals("*")) {
            return true;
        }
        for (String tag : tags.split("\\|\\|")) {
            if (tag.trim().equals(tag(index))) {
                return true;
            }
        }
        return false;
    }

    private Sample() {
    }
}
