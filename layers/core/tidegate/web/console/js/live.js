// What changes while we look: by WebSocket, and by asking again while it is away.
import { call } from "./api.js";

const LONGEST_PAUSE = 30_000;
const heard = new Set();
const shown = new Set();
let socket = null;
let mode = "connecting";
let watched = new Set();
let pause = 1000;
let timer = null;
let wanted = false;

export const live = {
  get mode() { return mode; },
  onChange(listener) { heard.add(listener); return () => heard.delete(listener); },
  onMode(listener) { shown.add(listener); return () => shown.delete(listener); },
  // How long a view may go without asking: the socket tells of its records, a slow poll catches what it cannot.
  pace(quick, slow) { return mode === "socket" ? slow : quick; },
  start() { wanted = true; connect(); },
  stop() {
    wanted = false;
    watched = new Set();
    clearTimeout(timer);
    socket?.close();
    socket = null;
    enter("connecting");
  },
  watch(ids) {
    const fresh = ids.filter((id) => id && !watched.has(id));
    for (const id of fresh) watched.add(id);
    if (fresh.length) send(fresh);
  },
};

function enter(next) {
  if (mode === next) return;
  mode = next;
  for (const listener of shown) listener(mode);
}

function send(ids) {
  if (socket?.readyState !== WebSocket.OPEN) return;
  for (let start = 0; start < ids.length; start += 100) {
    socket.send(JSON.stringify({ action: "watch", task_ids: ids.slice(start, start + 100) }));
  }
}

async function connect() {
  try {
    const { ticket, ws_url: address } = await call("POST", "v1/ws-tickets", { body: {} });
    open(`${address}?ticket=${encodeURIComponent(ticket)}`);
  } catch {
    again();
  }
}

function open(address) {
  if (!wanted) return;
  const made = new WebSocket(address);
  socket = made;
  made.onopen = () => {
    pause = 1000;
    enter("socket");
    send([...watched]);
  };
  made.onmessage = (event) => {
    let message = null;
    try {
      message = JSON.parse(event.data);
    } catch {
      return;
    }
    for (const listener of heard) listener(message);
  };
  made.onclose = () => { if (socket === made) again(); };
}

function again() {
  socket = null;
  if (!wanted) return;
  enter("polling");
  clearTimeout(timer);
  timer = setTimeout(connect, pause);
  pause = Math.min(LONGEST_PAUSE, pause * 2);
}
