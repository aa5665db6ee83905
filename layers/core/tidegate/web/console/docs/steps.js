// The getting-started steps, each in three ways. {URL} is replaced by the stack's URL. After this line the array is plain JSON: a test parses and runs it.
export const STEPS = [
  {"title": "Check that it answers", "text": "Needs no key.",
   "curl": "curl -s {URL}/healthz",
   "python": "pip install ./layers/client      # in a clone; then:\nfrom tidegate_client import Client",
   "cli": "tidegate --help"},
  {"title": "A project and a key for it", "text": "With the admin key, once: make run prints it, make deploy writes it to .local/aws-admin-key. allow_private_urls lets your own machine be a source or a receiver.",
   "curl": "export ADMIN=tga_…\ncurl -s {URL}/v1/projects -H \"Authorization: Bearer $ADMIN\" -H 'Content-Type: application/json' \\\n     -d '{\"name\": \"shop\", \"allow_private_urls\": true}'\ncurl -s {URL}/v1/projects/$PROJECT/keys -H \"Authorization: Bearer $ADMIN\" -H 'Content-Type: application/json' \\\n     -d '{\"scopes\": [\"read\", \"write\"]}'\nexport KEY=tg_…",
   "python": "admin = Client(\"{URL}\", ADMIN)\nproject = admin.projects.create(\"shop\", allow_private_urls=True)\nmade = admin.keys.create(project[\"project_id\"], [\"read\", \"write\"])\nclient = Client(\"{URL}\", made[\"key\"])",
   "cli": "tidegate login --api-url {URL}      # asks for $ADMIN\ntidegate project create shop --allow-private-urls\ntidegate key create $PROJECT --scope read --scope write\ntidegate login --api-url {URL}      # asks for $KEY"},
  {"title": "Rows to Excel", "text": "Rows in the request; or source_url, a paged endpoint of yours.",
   "curl": "curl -s {URL}/v1/download/sync -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' -o orders.xlsx \\\n     -d '{\"type\": \"excel\", \"source_data\": [{\"order\": \"A-1\", \"amount\": \"12.50\"}]}'",
   "python": "rows = [{\"order\": \"A-1\", \"amount\": \"12.50\"}]\ntask = client.exports.submit({\"name\": \"orders\", \"type\": \"excel\", \"source_data\": rows})\nprint(client.exports.get(task[\"task_id\"]).status)",
   "cli": "echo '[{\"order\": \"A-1\", \"amount\": \"12.50\"}]' > orders.json\ntidegate export submit --name orders --type excel --data orders.json --watch -o orders.xlsx"},
  {"title": "A file into the library", "text": "With curl: PUT the content to upload_url with all of upload_headers, then complete.",
   "curl": "curl -s {URL}/v1/files -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' \\\n     -d '{\"biz_id\": 2, \"app_id\": 3, \"file_path\": \"/releases/release.tar\"}'\ncurl -X PUT \"$UPLOAD_URL\" -H \"$UPLOAD_HEADER\" --data-binary @release.tar      # one -H for each of upload_headers\ncurl -s -X POST {URL}/v1/files/$FILE/complete -H \"Authorization: Bearer $KEY\"",
   "python": "from pathlib import Path\nfile = client.files.put(Path(\"release.tar\"), biz_id=2, app_id=3, file_path=\"/releases/release.tar\")",
   "cli": "tidegate file put release.tar --biz-id 2 --app-id 3 --file-path /releases/release.tar"},
  {"title": "To hosts", "text": "Each host runs tidegate agent with a key of its own, which an admin makes. Requests for one file within a window share a Job.",
   "curl": "curl -s {URL}/v1/downloads/batch -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' \\\n     -d '{\"biz_id\": 2, \"app_id\": 3, \"file_path\": \"/releases/release.tar\", \"file_name\": \"release.tar\", \"file_signature\": \"'$SHA256'\",\n          \"target_user\": \"root\", \"target_file_dir\": \"/srv/releases\", \"targets\": [{\"agent_id\": \"host-1\"}]}'",
   "python": "client.downloads.submit_batch(\n    biz_id=2, app_id=3, file_path=\"/releases/release.tar\", file_name=\"release.tar\",\n    file_signature=file[\"signature\"], target_user=\"root\", target_file_dir=\"/srv/releases\",\n    targets=[{\"agent_id\": \"host-1\"}])",
   "cli": "tidegate key create $PROJECT --scope agent --agent-id host-1\ntidegate agent --agent-id host-1 --root /tmp/host-1 --allow-dir /tmp/host-1/srv      # on the host, with that key in TIDEGATE_KEY\ntidegate distribute submit --file $FILE --target host-1 --user root --dir /srv/releases --watch"}
];
