// Live updates: by WebSocket, or by polling while there is none.
import { call } from "./api.js";

const LONGEST_RETRY_DELAY = 30_000;
const ANSWER_TIMEOUT = 10_000;
const ENDED = new Set(["completed", "failed", "cancelled", "expired", "success", "timeout", "superseded", "finished", "stopped"]);
const ANSWERS = new Set(["watching", "unwatched", "pong", "error"]);
// API Gateway closes the connection with this code after a larger frame; connecting again would not help.
const LARGEST_FRAME = 32 * 1024;
const CLOSED_TOO_BIG = 1009;
const ID_FIELDS = ["task_id", "job_id", "batch_id", "request_id"];
const changeListeners = new Set();
const modeListeners = new Set();
let socket = null;
let mode = "connecting";
let watched = new Set();
let retryDelay = 1000;
let timer = null;
let enabled = false;
let answerTimer = null;

export const live = {
  get mode() { return mode; },
  onChange(listener) { changeListeners.add(listener); return () => changeListeners.delete(listener); },
  onMode(listener) { modeListeners.add(listener); return () => modeListeners.delete(listener); },
  // How often a view polls: slowly while the socket reports changes of its records.
  pace(quick, slow) { return mode === "socket" ? slow : quick; },
  start() {
    if (enabled) return;
    enabled = true;
    connect();
  },
  stop() {
    enabled = false;
    watched = new Set();
    clearTimeout(timer);
    socket?.close();
    socket = null;
    setMode("connecting");
  },
  // Pairs of id and status. Records that have ended are not watched.
  watch(records) {
    const fresh = records.filter(([id, status]) => id && !ENDED.has(String(status).toLowerCase()) && !watched.has(id)).map(([id]) => id);
    for (const id of fresh) watched.add(id);
    if (fresh.length) sendWatch(fresh);
  },
};

function setMode(next) {
  if (mode === next) return;
  mode = next;
  for (const listener of modeListeners) listener(mode);
}

function sendWatch(ids) {
  if (socket?.readyState !== WebSocket.OPEN) return;
  for (const group of inFrames(ids)) socket.send(JSON.stringify({ action: "watch", task_ids: group }));
  // The server answers every watch; without an answer the connection is broken.
  const asked = socket;
  answerTimer ??= setTimeout(() => asked.close(), ANSWER_TIMEOUT);
}

// Groups of at most a hundred ids that fit into a frame.
function inFrames(ids) {
  const groups = [];
  let room = 0;
  for (const id of ids) {
    const size = new TextEncoder().encode(JSON.stringify(id)).length + 1;
    if (!groups.length || groups.at(-1).length === 100 || size > room) {
      groups.push([]);
      room = LARGEST_FRAME - 64;
    }
    groups.at(-1).push(id);
    room -= size;
  }
  return groups;
}

async function connect() {
  try {
    const { ticket, ws_url: address } = await call("POST", "v1/ws-tickets", { body: {} });
    open(`${address}?ticket=${encodeURIComponent(ticket)}`);
  } catch {
    reconnectLater();
  }
}

function open(address) {
  if (!enabled) return;
  const made = new WebSocket(address);
  socket = made;
  made.onopen = () => {
    retryDelay = 1000;
    setMode("socket");
    sendWatch([...watched]);
  };
  made.onmessage = (event) => {
    let message = null;
    try {
      message = JSON.parse(event.data);
    } catch {
      return;
    }
    clearTimeout(answerTimer);
    answerTimer = null;
    if (message.type === "error") refused(made, message.data || {});
    if (!message.data || ANSWERS.has(message.type)) return;
    if (ENDED.has(String(message.data.status).toLowerCase())) for (const name of ID_FIELDS) watched.delete(message.data[name]);
    for (const listener of changeListeners) listener(message);
  };
  made.onclose = (event) => { if (socket === made) reconnectLater(event.code !== CLOSED_TOO_BIG); };
}

// Stops watching a refused record, reconnects if the server does not know the connection, and otherwise polls.
function refused(made, { code, task_id: id }) {
  if (id) watched.delete(id);
  else if (code === "not_found") made.close();
  else setMode("polling");
}

function reconnectLater(connects = true) {
  clearTimeout(answerTimer);
  answerTimer = null;
  socket = null;
  if (!enabled) return;
  setMode("polling");
  clearTimeout(timer);
  if (!connects) return;
  timer = setTimeout(connect, retryDelay);
  retryDelay = Math.min(LONGEST_RETRY_DELAY, retryDelay * 2);
}
