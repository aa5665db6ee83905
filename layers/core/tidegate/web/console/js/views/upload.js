// Uploads files that are dropped on the page straight to the bucket by presigned PUTs; large ones in parts.
import { draw, h } from "../dom.js";
import { at, create, get, onceKey, post } from "../api.js";
import { bytes } from "../format.js";
import { t } from "../i18n.js";
import { icon } from "../parts/basics.js";
import { bar } from "../parts/bars.js";
import { toast } from "../parts/dialog.js";
import { field } from "../parts/form.js";

export function dropZone(refresh) {
  const fields = h("div", { class: "triple" },
    field("biz_id", t("files.biz"), { type: "number", min: 0, value: "1" }),
    field("app_id", t("files.app"), { type: "number", min: 0, value: "1" }),
    field("folder", t("files.folder"), { value: "/uploads/" }));
  const uploads = h("ul", { class: "uploads", "aria-live": "polite" });
  const picker = h("input", { type: "file", multiple: true, class: "visually-hidden", id: "pick-files", onchange: (event) => { uploadAll(event.target.files); event.target.value = ""; } });
  const zone = h("label", { class: "drop", for: "pick-files" }, icon("upload"), h("strong", null, t("files.drop")), h("span", { class: "muted" }, t("files.dropHint")));
  const element = h("section", { class: "card upload-card", "aria-label": t("files.upload") }, picker, zone, fields, uploads);

  const highlight = (over) => (event) => { event.preventDefault(); zone.classList.toggle("over", over); };
  for (const type of ["dragenter", "dragover"]) element.addEventListener(type, highlight(true));
  for (const type of ["dragleave", "dragend"]) element.addEventListener(type, highlight(false));
  element.addEventListener("drop", (event) => { highlight(false)(event); uploadAll(event.dataTransfer.files); });

  function uploadAll(list) {
    const place = Object.fromEntries(["biz_id", "app_id", "folder"].map((name) => [name, element.querySelector(`[name=${name}]`).value]));
    for (const file of list) upload(file, place, uploads, refresh);
  }
  return element;
}

async function upload(file, place, uploads, refresh) {
  const line = h("li", { class: "row" });
  uploads.prepend(line);
  const show = (share, note, kind) => draw(line, h("div", { class: "row-head" }, h("span", { class: "strong clip" }, file.name), h("span", { class: "muted" }, note)), bar(share, file.name, kind));
  show(0, t("files.announcing"));
  try {
    await store(file, place, show);
    show(1, t("status.ready"), "good");
    toast(t("files.uploaded", { name: file.name }));
    setTimeout(() => line.remove(), 6000);
  } catch (error) {
    show(1, error.message, "bad");
    toast(`${file.name}: ${error.message}`, "bad");
  }
  refresh();
}

// Puts a file into the library and returns its record once it is ready. `show` gets the share that is done, and a note.
export async function store(file, place, show) {
  const file_path = place.folder.replace(/\/*$/, "/") + file.name;
  const body = { biz_id: Number(place.biz_id), app_id: Number(place.app_id), file_path, file_name: file.name, size: file.size };
  const made = await create("v1/files", body, onceKey());
  const progress = (sent) => show(sent / Math.max(1, file.size), `${bytes(sent)} / ${bytes(file.size)}`);
  const parts = made.upload ? await putParts(made, file, progress) : void await put(made.upload_url, made.upload_headers, file, progress);
  show(1, t("files.checking"));
  return checked(await post(`v1/files/${at(made.file_id)}/complete`, parts && { parts }));
}

// The server verifies a large file after the upload, which takes a while.
async function checked(record) {
  while (record.state === "verifying") {
    await pause(2000);
    record = await get(`v1/files/${at(record.file_id)}`);
  }
  if (record.state === "failed") throw new Error(record.error);
  return record;
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Four parts at a time; a part whose connection breaks is retried with a new URL. Blob.slice reads nothing in advance.
async function putParts(made, file, progress) {
  const { part_size, parts } = made.upload;
  const sent = new Array(parts).fill(0);
  const etags = [];
  let next = 1;
  const worker = async () => {
    while (next <= parts) {
      const number = next++;
      const slice = file.slice((number - 1) * part_size, number * part_size);
      const moved = (count) => { sent[number - 1] = count; progress(sent.reduce((sum, each) => sum + each, 0)); };
      etags.push({ number, etag: await putPart(made.file_id, number, slice, moved) });
    }
  };
  await Promise.all(Array.from({ length: Math.min(4, parts) }, worker));
  return etags;
}

async function putPart(file_id, number, slice, moved) {
  for (let attempt = 1; ; attempt++) {
    try {
      const { parts: [{ url }] } = await post(`v1/files/${at(file_id)}/parts`, { numbers: [number] });
      const etag = await put(url, {}, slice, moved);
      moved(slice.size);
      return etag;
    } catch (error) {
      if (attempt === 5) throw error;
      moved(0);
      await pause(500 * 2 ** attempt);
    }
  }
}

// Returns the ETag. XMLHttpRequest instead of fetch, because only it reports upload progress.
function put(url, headers, file, progress) {
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    for (const [name, value] of Object.entries(headers)) {
      // The browser sets Content-Length itself.
      if (name.toLowerCase() !== "content-length") request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onload = () => (request.status < 300 ? done(request.getResponseHeader("ETag")) : fail(new Error(t("files.refused", { n: request.status }))));
    request.onerror = () => fail(new Error(t("files.broken")));
    // The URL is signed for a PUT without a content type.
    request.send(new Blob([file]));
  });
}
