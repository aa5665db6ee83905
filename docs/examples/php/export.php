<?php
// An Excel file with a head over two columns, from the pages of server.php.
//   TIDEGATE_API_URL=… TIDEGATE_KEY=tg_… php export.php http://127.0.0.1:8001 orders.xlsx
require __DIR__ . '/tidegate.php';

[, $server, $file] = $argv;
$task = tidegate('POST', '/v1/task', [
    'name' => 'orders',
    'type' => 'excel',
    'source_url' => "$server/orders",
    'template' => [
        ['title' => 'Order', 'name' => 'order'],
        ['title' => 'Paid', 'children' => [
            ['title' => 'Amount', 'name' => 'amount', 'style' => ['type' => 'number', 'format' => '#,##0.00']],
            ['title' => 'City', 'name' => 'city'],
        ]],
    ],
    'callback' => "$server/callback",
]);
do {
    sleep(1);
    $now = tidegate('GET', '/v1/task?task_id=' . urlencode($task['task_id']));
    echo $now['status'], ' ', $now['progress']['rows'], " rows\n";
} while (in_array($now['status'], ['pending', 'queued', 'running', 'paused'], true));
if ($now['status'] !== 'completed') {
    exit($now['failed_reason'] . "\n");
}
$link = tidegate('GET', '/v1/download/url?task_id=' . urlencode($task['task_id']));
copy($link['url'], $file);
echo 'saved ', filesize($file), " bytes\n";
