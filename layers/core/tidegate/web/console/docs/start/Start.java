// step
import java.net.URI;
import java.net.http.*;
import java.nio.file.*;
import java.util.regex.*;

public class Start {
    static final HttpClient HTTP = HttpClient.newHttpClient();

    static byte[] send(String method, String url, byte[] body, String... headers) throws Exception {
        var publisher = HttpRequest.BodyPublishers.ofByteArray(body);
        var request = HttpRequest.newBuilder(URI.create(url)).method(method, publisher).headers(headers).build();
        var answer = HTTP.send(request, HttpResponse.BodyHandlers.ofByteArray());
        if (answer.statusCode() >= 400) throw new Exception(new String(answer.body()));
        return answer.body();
    }

    static byte[] tidegate(String method, String path, String body) throws Exception {
        return send(method, System.getenv("TIDEGATE_API_URL") + path, body.getBytes(),
            "Authorization", "Bearer " + System.getenv("TIDEGATE_KEY"), "Content-Type", "application/json");
    }

    // A text of a JSON answer. In a real program, use a JSON library.
    static String field(String name, byte[] json) {
        var found = Pattern.compile("\"" + name + "\": *\"([^\"]*)\"").matcher(new String(json));
        return found.find() ? found.group(1) : "";
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println(new String(tidegate("GET", "/v1/me", "")));
        // step
        var rows = "\"source_data\": [{\"order\": \"A-1\", \"amount\": \"12.50\"}]";
        Files.write(Path.of("orders.xlsx"), tidegate("POST", "/v1/download/sync", "{\"type\": \"excel\", " + rows + "}"));
        // step
        var order = "{\"name\": \"orders\", \"type\": \"excel\", " + rows + "}";
        var task = field("task_id", tidegate("POST", "/v1/task", order));

        while (!field("status", tidegate("GET", "/v1/task?task_id=" + task, "")).equals("completed")) Thread.sleep(1000);
        var link = field("url", tidegate("GET", "/v1/download/url?task_id=" + task, ""));
        Files.write(Path.of("report.xlsx"), send("GET", link, new byte[0], "Accept", "*/*"));
        // step
        var known = "\"biz_id\": 2, \"app_id\": 3, \"file_path\": \"/releases/release.tar\"";
        var file = tidegate("POST", "/v1/files", "{" + known + "}");

        send("PUT", field("upload_url", file), Files.readAllBytes(Path.of("release.tar")), "If-None-Match", "*");
        var stored = tidegate("POST", "/v1/files/" + field("file_id", file) + "/complete", "");
        // step
        System.out.println(new String(tidegate("POST", "/v1/downloads/batch", "{" + known + """
            , "file_name": "release.tar", "file_signature": "%s", "target_user": "root",
            "target_file_dir": "/srv/releases", "targets": [{"agent_id": "host-1"}]}
            """.formatted(field("signature", stored)))));
    }
}
