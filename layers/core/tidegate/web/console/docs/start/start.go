// step
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

type fields = map[string]any

func send(method, url string, headers map[string]any, body []byte) []byte {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	for name, value := range headers {
		request.Header.Set(name, fmt.Sprint(value))
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	content, _ := io.ReadAll(answer.Body)
	if answer.StatusCode >= 400 {
		panic(string(content))
	}
	return content
}

func tidegate(method, path string, body fields) []byte {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	headers := fields{"Authorization": "Bearer " + os.Getenv("TIDEGATE_KEY"), "Content-Type": "application/json"}
	return send(method, os.Getenv("TIDEGATE_API_URL")+path, headers, text)
}

func read(content []byte) (record fields) {
	json.Unmarshal(content, &record)
	return record
}

func main() {
	fmt.Println(read(tidegate("GET", "/v1/me", nil)))
	// step
	rows := []fields{{"order": "A-1", "amount": "12.50"}}
	sheet := tidegate("POST", "/v1/download/sync", fields{"type": "excel", "source_data": rows})
	os.WriteFile("orders.xlsx", sheet, 0o644)
	// step
	order := fields{"name": "orders", "type": "excel", "source_data": rows}
	task := read(tidegate("POST", "/v1/task", order))["task_id"].(string)

	for read(tidegate("GET", "/v1/task?task_id="+task, nil))["status"] != "completed" {
		time.Sleep(time.Second)
	}
	link := read(tidegate("GET", "/v1/download/url?task_id="+task, nil))["url"].(string)
	os.WriteFile("report.xlsx", send("GET", link, nil, nil), 0o644)
	// step
	known := fields{"biz_id": 2, "app_id": 3, "file_path": "/releases/release.tar"}
	file := read(tidegate("POST", "/v1/files", known))

	content, _ := os.ReadFile("release.tar")
	send("PUT", file["upload_url"].(string), file["upload_headers"].(fields), content)
	stored := read(tidegate("POST", "/v1/files/"+file["file_id"].(string)+"/complete", nil))
	// step
	known["file_name"], known["file_signature"] = "release.tar", stored["signature"]
	known["target_user"], known["target_file_dir"] = "root", "/srv/releases"
	known["targets"] = []fields{{"agent_id": "host-1"}}
	fmt.Println(read(tidegate("POST", "/v1/downloads/batch", known)))
}
