package verniermq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/** The indexes a consumer still waits for: the first {@code expect} from {@code start} on that its tags let through. */
final class Expectation {
    private static final int SHOWN = 20;

    private final Set<Integer> missing = new TreeSet<>();
    private final Set<Integer> seen = new TreeSet<>();
    private final int expected;
    private int deliveries;

    Expectation(int start, int expect, String tags) {
        for (int index = start; missing.size() < expect; index++) {
            if (Sample.matches(tags, index)) {
                missing.add(index);
            }
        }
        expected = expect;
    }

    synchronized void received(int index) {
        deliveries++;
        seen.add(index);
        missing.remove(index);
        notifyAll();
    }

    /** @return whether everything arrived in time */
    synchronized boolean await(long timeoutMillis) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        while (!missing.isEmpty()) {
            long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            if (left <= 0) {
                return false;
            }
            wait(left);
        }
        return true;
    }

    synchronized void summarise(JsonLines out) {
        List<Integer> some = new ArrayList<>(missing).subList(0, Math.min(SHOWN, missing.size()));
        out.write("summary", "expected", expected, "received", seen.size(), "deliveries", deliveries,
            "missingCount", missing.size(), "missing", some);
    }
}
