// A batch: this program is the business whose endpoint gets the items, and the caller who starts the batch.
//   TIDEGATE_API_URL=… TIDEGATE_KEY=tg_… TIDEGATE_SECRET=whsec_… java Points.java 8002 100
// Java 17, no library. With one for JSON (Jackson, Gson) the two patterns below go.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Instant;
import java.util.Base64;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Points {
    static final String API = System.getenv("TIDEGATE_API_URL"), KEY = System.getenv("TIDEGATE_KEY");
    static final String SECRET = System.getenv("TIDEGATE_SECRET");
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    // `webhook-id` is the same for every attempt of an item: no item is processed twice.
    static final Set<String> DONE = ConcurrentHashMap.newKeySet();

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]), total = Integer.parseInt(args[1]);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/process", Points::process);
        server.start();

        String biz = field("biz_id", call("POST", "/v1/biz",
            "{\"name\": \"points\", \"process_url\": \"http://127.0.0.1:%d/process\"}".formatted(port)));
        String batch = field("batch_id", call("POST", "/v1/batches",
            "{\"biz_id\": \"%s\", \"name\": \"points\", \"total\": %d, \"rate\": 50}".formatted(biz, total)));
        call("POST", "/v1/batches/" + batch + "/start", "{}");
        String status;
        do {
            Thread.sleep(1000);
            String now = call("GET", "/v1/batches/" + batch, null);
            status = field("status", now);
            System.out.println(status + " " + field("processed", now) + " of " + total);
        } while (!status.equals("finished") && !status.equals("stopped"));
        System.out.println("verified " + DONE.size() + " items");
        server.stop(0);
        System.exit(0);
    }

    static void process(HttpExchange exchange) {
        try (exchange) {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            boolean known = signed(exchange, body);
            if (known) DONE.add(exchange.getRequestHeaders().getFirst("webhook-id"));
            byte[] answer = "{\"result\": \"ok\"}".getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(known ? 200 : 401, known ? answer.length : -1);
            if (known) exchange.getResponseBody().write(answer);
        } catch (Exception error) {
            System.err.println(error);
        }
    }

    /** Whether the request was signed with your origin's secret, less than five minutes ago. */
    static boolean signed(HttpExchange exchange, String body) throws Exception {
        var headers = exchange.getRequestHeaders();
        String id = headers.getFirst("webhook-id"), time = headers.getFirst("webhook-timestamp");
        if (id == null || time == null || headers.getFirst("webhook-signature") == null) return false;
        if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(time)) > 300) return false;
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(Base64.getDecoder().decode(SECRET.substring("whsec_".length())), "HmacSHA256"));
        byte[] sum = mac.doFinal((id + "." + time + "." + body).getBytes(StandardCharsets.UTF_8));
        byte[] expected = ("v1," + Base64.getEncoder().encodeToString(sum)).getBytes(StandardCharsets.UTF_8);
        for (String given : headers.getFirst("webhook-signature").split(" "))
            if (MessageDigest.isEqual(expected, given.getBytes(StandardCharsets.UTF_8))) return true;
        return false;
    }

    static String call(String method, String path, String body) throws Exception {
        var publisher = body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body);
        var request = HttpRequest.newBuilder(URI.create(API + path)).method(method, publisher)
            .header("Authorization", "Bearer " + KEY).header("Content-Type", "application/json").build();
        var answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 400) throw new RuntimeException(method + " " + path + ": " + answer.body());
        return answer.body();
    }

    static String field(String name, String json) {
        var found = Pattern.compile("\"" + name + "\": ?\"?([^\",}]*)").matcher(json);
        if (!found.find()) throw new RuntimeException("no " + name + " in " + json);
        return found.group(1);
    }
}
