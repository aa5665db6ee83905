// One call of the API as code. All programs read TIDEGATE_API_URL and TIDEGATE_KEY from the environment.
export const LANGUAGES = [["curl", "curl"], ["python", "Python"], ["cli", "tidegate"], ["php", "PHP"], ["typescript", "TypeScript"], ["go", "Go"], ["java", "Java"]];

// `path` includes the query; `body` is a value for JSON, or undefined.
export function callIn(language, method, path, body) {
  return WRITERS[language](method, path, body, body === undefined ? "" : JSON.stringify(body, null, 2));
}

const inShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const indented = (text, by) => text.replaceAll("\n", `\n${by}`);

const WRITERS = {
  curl: (method, path, body, json) => [
    `curl -s${method === "GET" || (method === "POST" && json) ? "" : ` -X ${method}`} "$TIDEGATE_API_URL${path}"`,
    `-H "Authorization: Bearer $TIDEGATE_KEY"`, ...(json ? [`-H "Content-Type: application/json"`, `-d ${inShell(json)}`] : []),
  ].join(" \\\n     "),
  cli: (method, path, body, json) => `tidegate api ${method} ${inShell(path)}${json ? ` -d ${inShell(json)}` : ""}`,
  python: (method, path, body, json) => `from tidegate_client import Client\n\nclient = Client()\nanswer = client.http.call(${quoted(method)}, ${quoted(path)}${json ? `, body=${literal(body, PYTHON)}` : ""})\nprint(answer.json())`,
  php: (method, path, body, json) => [
    `$headers = ['Authorization: Bearer ' . getenv('TIDEGATE_KEY')${json ? ", 'Content-Type: application/json'" : ""}];`,
    ...(json ? [`$body = ${literal(body, PHP)};`] : []),
    `$http = ['method' => ${single(method)}, 'header' => $headers${json ? ", 'content' => json_encode($body)" : ""}];`,
    `echo file_get_contents(getenv('TIDEGATE_API_URL') . ${single(path)}, false, stream_context_create(['http' => $http]));`,
  ].join("\n"),
  typescript: (method, path, body, json) => [
    `const answer = await fetch(process.env.TIDEGATE_API_URL + ${quoted(path)}, {`, `  method: ${quoted(method)},`,
    `  headers: { Authorization: \`Bearer \${process.env.TIDEGATE_KEY}\`${json ? `, "Content-Type": "application/json"` : ""} },`,
    ...(json ? [`  body: JSON.stringify(${indented(json, "  ")}),`] : []), "});", "console.log(await answer.json());",
  ].join("\n"),
  go: (method, path, body, json) => [
    ...(json ? [`body := strings.NewReader(${json.includes("`") ? quoted(json) : `\`${json}\``})`] : []),
    `request, _ := http.NewRequest(${quoted(method)}, os.Getenv("TIDEGATE_API_URL")+${quoted(path)}, ${json ? "body" : "nil"})`,
    `request.Header.Set("Authorization", "Bearer "+os.Getenv("TIDEGATE_KEY"))`, ...(json ? [`request.Header.Set("Content-Type", "application/json")`] : []),
    "answer, err := http.DefaultClient.Do(request)", "if err != nil {", "\tpanic(err)", "}", "content, _ := io.ReadAll(answer.Body)", "fmt.Println(string(content))",
  ].join("\n"),
  java: (method, path, body, json) => [
    ...(json ? [`var body = """\n    ${indented(json.replaceAll("\\", "\\\\").replaceAll('"""', '\\"""'), "    ")}""";`] : []),
    `var request = HttpRequest.newBuilder(URI.create(System.getenv("TIDEGATE_API_URL") + ${quoted(path)}))`,
    `    .header("Authorization", "Bearer " + System.getenv("TIDEGATE_KEY"))`, ...(json ? [`    .header("Content-Type", "application/json")`] : []),
    `    .method(${quoted(method)}, HttpRequest.BodyPublishers.${json ? "ofString(body)" : "noBody()"}).build();`,
    "var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());", "System.out.println(answer.body());",
  ].join("\n"),
};

const quoted = (text) => JSON.stringify(text);
const single = (text) => `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
const PYTHON = { true: "True", false: "False", null: "None", text: quoted, list: ["[", "]"], object: ["{", "}"], arrow: ": " };
const PHP = { true: "true", false: "false", null: "null", text: single, list: ["[", "]"], object: ["[", "]"], arrow: " => " };

// A value for JSON as a literal of another language.
function literal(value, words, by = "") {
  const inner = `${by}    `;
  const wrapped = ([begin, end], parts) => (parts.length ? `${begin}\n${parts.map((part) => inner + part).join(",\n")},\n${by}${end}` : begin + end);
  if (Array.isArray(value)) return wrapped(words.list, value.map((each) => literal(each, words, inner)));
  if (value && typeof value === "object") return wrapped(words.object, Object.entries(value).map(([name, each]) => words.text(name) + words.arrow + literal(each, words, inner)));
  if (typeof value === "string") return words.text(value);
  return words[String(value)] ?? String(value);
}
