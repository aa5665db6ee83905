// An export and a download, with types made from /openapi.json, and the check of their callbacks.
//   npm install && npm run types && npm run build && node build/example.js FILE_ID HOST 8004
import { createServer } from "node:http";
import createClient from "openapi-fetch";
import { Webhook } from "standardwebhooks";
import type { components, paths } from "./tidegate.d.ts";

const { TIDEGATE_API_URL: api, TIDEGATE_KEY: key, TIDEGATE_SECRET: secret } = process.env;
const [fileId, host, port] = process.argv.slice(2);
if (!api || !key || !secret || !fileId || !host || !port) throw new Error("see the first lines of this file");

const client = createClient<paths>({ baseUrl: api, headers: { authorization: `Bearer ${key}` } });
const callback = `http://127.0.0.1:${port}/`;

// `data` is typed by the route; an error is a problem (RFC 9457) that says what to do.
function wanted<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) throw new Error(`${answer.response.status} ${JSON.stringify(answer.error)}`);
  return answer.data;
}

const received: string[] = [];
const server = createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  try {
    const message = new Webhook(secret).verify(body, request.headers as Record<string, string>) as { type: string };
    received.push(message.type);
    response.writeHead(204).end();
  } catch {
    response.writeHead(401).end();
  }
}).listen(Number(port), "127.0.0.1");

async function until<T>(read: () => Promise<T>, over: (value: T) => boolean): Promise<T> {
  for (;;) {
    const value = await read();
    if (over(value)) return value;
    await new Promise((wake) => setTimeout(wake, 500));
  }
}

const order: components["schemas"]["TaskBody"] = {
  name: "orders", type: "excel", source_data: [{ order: "A-1", amount: "12.50" }], callback,
};
const { task_id } = wanted(await client.POST("/v1/task", { body: order }));
const task = await until(
  async () => wanted(await client.GET("/v1/task", { params: { query: { task_id } } })),
  (now) => !["pending", "queued", "running", "paused"].includes(now.status),
);
const link = wanted(await client.GET("/v1/download/url", { params: { query: { task_id } } }));
const workbook = await (await fetch(link.url)).arrayBuffer();
console.log(`export ${task.status}, ${workbook.byteLength} bytes`);

const file = wanted(await client.GET("/v1/files/{file_id}", { params: { path: { file_id: fileId } } }));
const submitted = wanted(await client.POST("/v1/downloads", {
  body: {
    biz_id: file.biz_id, app_id: file.app_id, file_path: file.file_path, file_name: file.file_name,
    file_signature: file.signature!, target_agent_id: host, target_user: "root", target_file_dir: "/srv", callback,
  },
}));
const download = await until(
  async () => wanted(await client.GET("/v1/downloads/{task}", { params: { path: { task: submitted.task_id } } })),
  (now) => !["Pending", "Running"].includes(now.status),
);
console.log(`download ${download.status}`);

await until(async () => received.length, (count) => count >= 2);
console.log(`verified ${received.sort().join(" ")}`);
server.close();
