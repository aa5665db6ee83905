// A business of batches: gets the items one by one and says what became of each.
//   npm install && TIDEGATE_SECRET=whsec_… npx tsx business.ts 8002
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.TIDEGATE_SECRET!);

createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  try {
    // An item may come twice, with the same webhook-id: remember it where you keep your data.
    const item = webhook.verify(body, request.headers as Record<string, string>) as { index: number; attempt: number };
    console.log(`item ${item.index}, attempt ${item.attempt}`);
  } catch {
    response.writeHead(401).end();
    return;
  }
  response.writeHead(200, { "content-type": "application/json" });
  // Or "error", which is tried again, or "abandon", which is not; both with "msg".
  response.end(JSON.stringify({ result: "ok" }));
}).listen(Number(process.argv[2]), "127.0.0.1", () => console.log(`waits for items on port ${process.argv[2]}`));
