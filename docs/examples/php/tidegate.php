<?php
// What both programs need: a call of the API, and the check of a signature (Standard Webhooks).

function tidegate(string $method, string $path, ?array $body = null): array
{
    $request = curl_init(getenv('TIDEGATE_API_URL') . $path);
    $headers = ['Authorization: Bearer ' . getenv('TIDEGATE_KEY'), 'Content-Type: application/json'];
    if ($method === 'POST') {
        // The same key and body again is the same answer, so a lost answer can be asked for once more.
        $headers[] = 'Idempotency-Key: ' . bin2hex(random_bytes(16));
    }
    curl_setopt_array($request, [
        CURLOPT_CUSTOMREQUEST => $method, CURLOPT_HTTPHEADER => $headers,
        CURLOPT_RETURNTRANSFER => true, CURLOPT_TIMEOUT => 60,
        CURLOPT_POSTFIELDS => $body === null ? null : json_encode($body, JSON_UNESCAPED_UNICODE),
    ]);
    $answer = curl_exec($request);
    $status = curl_getinfo($request, CURLINFO_RESPONSE_CODE);
    if ($status >= 400 || $answer === false) {
        throw new RuntimeException("$method $path: $status " . ($answer ?: curl_error($request)));
    }
    return json_decode($answer, true, flags: JSON_THROW_ON_ERROR);
}

/** Whether the request was signed with your origin's secret, less than five minutes ago. `$content` is the body; of a
 *  request for a page it is the text `GET {url}`. */
function signed(string $secret, string $content): bool
{
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $time = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    $key = base64_decode(substr($secret, strlen('whsec_')));
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$time.$content", $key, true));
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $given) {
        if (hash_equals($expected, $given) && abs(time() - (int) $time) < 300) {
            return true;
        }
    }
    return false;
}
