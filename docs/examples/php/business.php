<?php
// A business of batches: gets the items one by one and says what became of each.
//   TIDEGATE_SECRET=whsec_… php -S 127.0.0.1:8002 business.php
require __DIR__ . '/tidegate.php';

$body = file_get_contents('php://input');
if (!signed(getenv('TIDEGATE_SECRET'), $body)) {
    http_response_code(401);
    return;
}
// An item may come twice, with the same $_SERVER['HTTP_WEBHOOK_ID']: remember it where you keep your data.
$item = json_decode($body, true);
file_put_contents('php://stdout', "item {$item['index']}, attempt {$item['attempt']}\n");
header('Content-Type: application/json');
// Or "error", which is tried again, or "abandon", which is not; both with "msg".
echo json_encode(['result' => 'ok']);
