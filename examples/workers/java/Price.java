// The worker for `price` of the README's first workflow, in Java 17 with Gson: java -cp /usr/share/java/gson.jar examples/workers/java/Price.java
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.net.URI;
import java.net.http.*;
import java.util.Map;

public class Price {
    static final Map<String, Integer> CENTS = Map.of("pen", 250, "ink", 990);
    static final String SERVER = System.getenv().getOrDefault("WORKFLOW_MANAGER_URL", "http://127.0.0.1:8088");
    static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    // Asks until there is an answer: the manager may be away for a while.
    static HttpResponse<String> post(String path, String body) throws InterruptedException {
        var request = HttpRequest.newBuilder(URI.create(SERVER + path)).POST(HttpRequest.BodyPublishers.ofString(body)).build();
        while (true) {
            try {
                var answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() < 300) return answer;
                System.err.println("price: " + path + ": " + answer.statusCode() + " " + answer.body());
            } catch (java.io.IOException error) { System.err.println("price: " + error); }
            Thread.sleep(1000);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        while (true) {
            var message = post("/api/queue/price/receive", "");
            if (message.statusCode() == 204) continue;
            var reply = new JsonObject();
            String kind = "result";
            try {
                reply = JsonParser.parseString(message.body()).getAsJsonObject();
                var line = reply.getAsJsonObject("line");
                line.addProperty("cents", CENTS.get(line.get("article").getAsString()) * line.get("count").getAsInt());
            } catch (RuntimeException | StackOverflowError error) { kind = "error"; reply = new JsonObject(); reply.addProperty("error", error.toString()); }
            post(message.headers().firstValue("Reply-To").get() + "?type=" + kind, reply.toString());
        }
    }
}
