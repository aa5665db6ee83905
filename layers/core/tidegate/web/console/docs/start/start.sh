# step
api=$TIDEGATE_API_URL auth="Authorization: Bearer $TIDEGATE_KEY" json="Content-Type: application/json"
field() { sed "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/"; }   # a text of a JSON answer

curl -s "$api/v1/me" -H "$auth"
# step
curl -s "$api/v1/download/sync" -H "$auth" -H "$json" -o orders.xlsx \
     -d '{"type": "excel", "source_data": [{"order": "A-1", "amount": "12.50"}]}'
# step
TASK=$(curl -s "$api/v1/task" -H "$auth" -H "$json" \
     -d '{"name": "orders", "type": "excel", "source_data": [{"order": "A-1", "amount": "12.50"}]}' | field task_id)

until curl -s "$api/v1/task?task_id=$TASK" -H "$auth" | grep -q '"status":"completed"'; do sleep 1; done
LINK=$(curl -s "$api/v1/download/url?task_id=$TASK" -H "$auth" | field url)
curl -s "$LINK" -o report.xlsx
# step
CREATED=$(curl -s "$api/v1/files" -H "$auth" -H "$json" \
     -d '{"biz_id": 2, "app_id": 3, "file_path": "/releases/release.tar"}')
FILE=$(echo "$CREATED" | field file_id)

curl -s -X PUT "$(echo "$CREATED" | field upload_url)" -H 'If-None-Match: *' --data-binary @release.tar
SHA256=$(curl -s -X POST "$api/v1/files/$FILE/complete" -H "$auth" | field signature)
# step
curl -s "$api/v1/downloads/batch" -H "$auth" -H "$json" -d '{
     "biz_id": 2, "app_id": 3, "file_path": "/releases/release.tar", "file_name": "release.tar",
     "file_signature": "'$SHA256'", "target_user": "root", "target_file_dir": "/srv/releases",
     "targets": [{"agent_id": "host-1"}]}'
