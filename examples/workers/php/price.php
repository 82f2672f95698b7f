<?php // The worker for `price` of the README's first workflow, in PHP: php examples/workers/php/price.php
const CENTS = ['pen' => 250, 'ink' => 990];

// Asks until there is an answer: the manager may be away for a while. Gives status, headers and body.
function post(string $path, string $body = ''): array {
    $server = getenv('WORKFLOW_MANAGER_URL') ?: 'http://127.0.0.1:8088';
    $options = ['method' => 'POST', 'header' => 'Content-Type: application/json', 'content' => $body, 'ignore_errors' => true, 'timeout' => 60];
    while (true) {
        $answer = @file_get_contents($server . $path, false, stream_context_create(['http' => $options]));
        $lines = $http_response_header ?? [];
        $status = (int) (explode(' ', $lines[0] ?? '')[1] ?? 0);
        if ($answer !== false && $status >= 200 && $status < 300) break;
        fwrite(STDERR, "price: $path: " . ($status ? "$status $answer" : 'no answer') . "\n");
        unset($http_response_header);
        sleep(1);
    }
    foreach ($lines as $line) {
        [$name, $value] = explode(':', $line, 2) + [1 => ''];
        $headers[strtolower($name)] = trim($value);
    }
    return [$status, $headers, $answer];
}

while (true) {
    [$status, $headers, $body] = post('/api/queue/price/receive');
    if ($status === 204) continue;
    try {
        $order = json_decode($body, false, 512, JSON_THROW_ON_ERROR);
        $line = $order->line ?? throw new Exception('there is no line');
        $line->cents = (CENTS[$line->article] ?? throw new Exception("there is no price for $line->article")) * $line->count;
        [$reply, $type] = [$order, 'result'];
    } catch (Throwable $error) {
        [$reply, $type] = [['error' => $error->getMessage()], 'error'];
    }
    post($headers['reply-to'] . "?type=$type", json_encode($reply));
}
