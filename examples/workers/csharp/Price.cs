// The worker for `price` of the README's first workflow, in C# with Json.NET. With Mono:
// mcs -r:System.Net.Http.dll -r:Newtonsoft.Json.dll -out:price.exe examples/workers/csharp/Price.cs && mono price.exe
using System;
using System.Collections.Generic;
using System.Linq;
using System.Net.Http;
using System.Threading;
using Newtonsoft.Json.Linq;

static class Price {
    static readonly Dictionary<string, int> Cents = new Dictionary<string, int> { ["pen"] = 250, ["ink"] = 990 };
    static readonly string Server = Environment.GetEnvironmentVariable("WORKFLOW_MANAGER_URL") ?? "http://127.0.0.1:8088";
    static readonly HttpClient Client = new HttpClient();

    // Asks until there is an answer: the manager may be away for a while.
    static HttpResponseMessage Post(string path, string body) {
        for (;; Thread.Sleep(1000)) {
            try {
                var answer = Client.PostAsync(Server + path, new StringContent(body)).Result;
                if (answer.IsSuccessStatusCode) return answer;
                Console.Error.WriteLine($"price: {path}: {(int) answer.StatusCode}");
            } catch (AggregateException error) { Console.Error.WriteLine($"price: {error.InnerException.Message}"); }
        }
    }

    static void Main() {
        while (true) {
            var message = Post("/api/queue/price/receive", "");
            if ((int) message.StatusCode == 204) continue;
            var (reply, type) = (new JObject(), "result");
            try {
                reply = JObject.Parse(message.Content.ReadAsStringAsync().Result);
                var line = (JObject) reply["line"];
                line["cents"] = Cents[(string) line["article"]] * (int) line["count"];
            } catch (Exception error) { (reply, type) = (new JObject { ["error"] = error.Message }, "error"); }
            Post(message.Headers.GetValues("Reply-To").Single() + "?type=" + type, reply.ToString());
        }
    }
}
