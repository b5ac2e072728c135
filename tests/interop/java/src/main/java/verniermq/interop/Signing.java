package verniermq.interop;

import org.apache.rocketmq.remoting.RPCHook;

/** Signs every request, with {@code --access-key} and {@code --secret-key}. */
final class Signing {
    private static final String PACKAGE = "org.apache.rocketmq.acl.common.";

    /** @return {@code null}, which signs nothing, without an access key */
    static RPCHook hook(Options options) throws ReflectiveOperationException {
        String accessKey = options.text("access-key", "");
        if (accessKey.isEmpty()) {
            return null;
        }
        // By reflection: the 4.9 client has these classes in a module of their own, which it does not bring along.
        Class<?> credentials = Class.forName(PACKAGE + "SessionCredentials");
        Object key = credentials.getConstructor(String.class, String.class)
            .newInstance(accessKey, options.text("secret-key"));
        return (RPCHook) Class.forName(PACKAGE + "AclClientRPCHook").getConstructor(credentials).newInstance(key);
    }

    private Signing() {
    }
}
