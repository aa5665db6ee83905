// Distributes a stored file to hosts, waits for the Job, and verifies its callback.
//
//	TIDEGATE_API_URL=… TIDEGATE_KEY=tg_… TIDEGATE_SECRET=whsec_… go run main.go FILE_ID DIR USER 127.0.0.1:8003 HOST…
//
// The callback is sent to the address, which this program listens on.
package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

type file struct {
	BizID     int    `json:"biz_id"`
	AppID     int    `json:"app_id"`
	FilePath  string `json:"file_path"`
	FileName  string `json:"file_name"`
	Signature string `json:"signature"`
}

type target struct {
	AgentID string `json:"agent_id"`
}

type order struct {
	BizID         int      `json:"biz_id"`
	AppID         int      `json:"app_id"`
	FilePath      string   `json:"file_path"`
	FileName      string   `json:"file_name"`
	FileSignature string   `json:"file_signature"`
	TargetFileDir string   `json:"target_file_dir"`
	TargetUser    string   `json:"target_user"`
	Targets       []target `json:"targets"`
	Callback      string   `json:"callback"`
}

type submitted struct {
	JobID string `json:"job_id"`
}

type job struct {
	Status string         `json:"status"`
	Counts map[string]int `json:"counts"`
}

func call(method, path string, body, answer any) error {
	sent, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(method, os.Getenv("TIDEGATE_API_URL")+path, bytes.NewReader(sent))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TIDEGATE_KEY"))
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		return fmt.Errorf("%s %s: %s %s", method, path, response.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// signed tells whether the request was signed with your origin's secret, less than five minutes ago.
func signed(secret string, headers http.Header, body []byte) bool {
	id, at := headers.Get("webhook-id"), headers.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "%s.%s.%s", id, at, body)
	expected := []byte("v1," + base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	for _, given := range strings.Fields(headers.Get("webhook-signature")) {
		if hmac.Equal(expected, []byte(given)) {
			return true
		}
	}
	return false
}

func receive(address string, verified chan<- string) {
	log.Fatal(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !signed(os.Getenv("TIDEGATE_SECRET"), r.Header, body) {
			http.Error(w, "not signed", http.StatusUnauthorized)
			return
		}
		var message struct {
			Type string `json:"type"`
			Data struct {
				Status string `json:"status"`
			} `json:"data"`
		}
		json.Unmarshal(body, &message)
		w.WriteHeader(http.StatusNoContent)
		verified <- message.Type + " " + message.Data.Status
	})))
}

func main() {
	fileID, dir, user, address := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	verified := make(chan string, 100)
	go receive(address, verified)

	var stored file
	check(call("GET", "/v1/files/"+url.PathEscape(fileID), nil, &stored))
	wanted := order{stored.BizID, stored.AppID, stored.FilePath, stored.FileName, stored.Signature, dir, user, nil, "http://" + address + "/"}
	for _, host := range os.Args[5:] {
		wanted.Targets = append(wanted.Targets, target{host})
	}
	var accepted submitted
	check(call("POST", "/v1/downloads/batch", wanted, &accepted))
	for {
		var now job
		check(call("GET", "/v1/jobs/"+url.PathEscape(accepted.JobID), nil, &now))
		fmt.Println(now.Status, now.Counts["success"], "of", now.Counts["total"])
		if now.Status != "Pending" && now.Status != "Running" {
			break
		}
		time.Sleep(time.Second)
	}
	for range os.Args[5:] {
		fmt.Println("verified", <-verified)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
