# step
<?php
function send(string $method, string $url, ?string $content = null, array $headers = []): string
{
    $http = ['method' => $method, 'content' => $content, 'header' => $headers, 'ignore_errors' => true];
    return file_get_contents($url, false, stream_context_create(['http' => $http]));
}

function tidegate(string $method, string $path, ?array $body = null): string
{
    $headers = ['Authorization: Bearer ' . getenv('TIDEGATE_KEY'), 'Content-Type: application/json'];
    return send($method, getenv('TIDEGATE_API_URL') . $path, $body ? json_encode($body) : null, $headers);
}

print tidegate('GET', '/v1/me');
# step
$rows = [['order' => 'A-1', 'amount' => '12.50']];
file_put_contents('orders.xlsx', tidegate('POST', '/v1/download/sync', ['type' => 'excel', 'source_data' => $rows]));
# step
$order = ['name' => 'orders', 'type' => 'excel', 'source_data' => $rows];
$task = json_decode(tidegate('POST', '/v1/task', $order))->task_id;

while (json_decode(tidegate('GET', "/v1/task?task_id=$task"))->status !== 'completed') {
    sleep(1);
}
$link = json_decode(tidegate('GET', "/v1/download/url?task_id=$task"))->url;
file_put_contents('report.xlsx', send('GET', $link));
# step
$known = ['biz_id' => 2, 'app_id' => 3, 'file_path' => '/releases/release.tar'];
$file = json_decode(tidegate('POST', '/v1/files', $known));

$headers = array_map(fn ($name, $value) => "$name: $value", array_keys((array) $file->upload_headers), (array) $file->upload_headers);
send('PUT', $file->upload_url, file_get_contents('release.tar'), [...$headers, 'Content-Type:']);
$stored = json_decode(tidegate('POST', "/v1/files/$file->file_id/complete"));
# step
print tidegate('POST', '/v1/downloads/batch', $known + [
    'file_name' => 'release.tar', 'file_signature' => $stored->signature,
    'target_user' => 'root', 'target_file_dir' => '/srv/releases',
    'targets' => [['agent_id' => 'host-1']],
]);
