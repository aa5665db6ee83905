<?php
// The shop's server: pages of rows for an export, and the callback at its end.
//   TIDEGATE_SECRET=whsec_… php -S 127.0.0.1:8001 server.php
require __DIR__ . '/tidegate.php';

$secret = getenv('TIDEGATE_SECRET');
$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);

if ($path === '/orders') {
    if (!signed($secret, 'GET http://' . $_SERVER['HTTP_HOST'] . $_SERVER['REQUEST_URI'])) {
        http_response_code(401);
        return;
    }
    $orders = array_map(fn ($n) => ['order' => "A-$n", 'amount' => "$n.50", 'city' => '上海'], range(1, 2431));
    $rows = array_slice($orders, $_GET['page'] * $_GET['page_size'], $_GET['page_size']);
    header('Content-Type: application/json');
    echo json_encode(['status' => 200, 'data' => ['data' => $rows, 'total' => count($orders)]]);
} elseif ($path === '/callback') {
    $body = file_get_contents('php://input');
    if (!signed($secret, $body)) {
        http_response_code(401);
        return;
    }
    // A callback may come twice: remember $_SERVER['HTTP_WEBHOOK_ID'] where you keep your data.
    $message = json_decode($body, true);
    file_put_contents('php://stdout', "verified {$message['type']} {$message['data']['status']}\n");
    http_response_code(204);
}
