// step
import { readFile, writeFile } from "node:fs/promises";

async function tidegate(method: string, path: string, body?: object): Promise<Response> {
  const headers = { Authorization: `Bearer ${process.env.TIDEGATE_KEY}`, "Content-Type": "application/json" };
  const answer = await fetch(process.env.TIDEGATE_API_URL + path, { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

console.log(await (await tidegate("GET", "/v1/me")).json());
// step
const rows = [{ order: "A-1", amount: "12.50" }];
const sheet = await tidegate("POST", "/v1/download/sync", { type: "excel", source_data: rows });
await writeFile("orders.xlsx", new Uint8Array(await sheet.arrayBuffer()));
// step
const order = { name: "orders", type: "excel", source_data: rows };
const { task_id } = await (await tidegate("POST", "/v1/task", order)).json();

while ((await (await tidegate("GET", `/v1/task?task_id=${task_id}`)).json()).status !== "completed") {
  await new Promise((resolve) => setTimeout(resolve, 1000));
}
const { url } = await (await tidegate("GET", `/v1/download/url?task_id=${task_id}`)).json();
await writeFile("report.xlsx", new Uint8Array(await (await fetch(url)).arrayBuffer()));
// step
const known = { biz_id: 2, app_id: 3, file_path: "/releases/release.tar" };
const file = await (await tidegate("POST", "/v1/files", known)).json();

await fetch(file.upload_url, { method: "PUT", headers: file.upload_headers, body: new Uint8Array(await readFile("release.tar")) });
const stored = await (await tidegate("POST", `/v1/files/${file.file_id}/complete`)).json();
// step
const sent = await tidegate("POST", "/v1/downloads/batch", {
  ...known, file_name: "release.tar", file_signature: stored.signature,
  target_user: "root", target_file_dir: "/srv/releases", targets: [{ agent_id: "host-1" }],
});
console.log(await sent.json());
