// How the steps, put together into one file, are run. The command's are typed one by one.
export const RUNS = {
  curl: "bash start.sh", python: ".venv/bin/python start.py", php: "php start.php", typescript: "npx -y tsx start.ts", go: "go run start.go", java: "java Start.java",
};
// The getting-started steps. The code of each is the part of the programs in start/ with the same number.
export const STEPS = {
  en: [
    ["Connect", "The first call shows whose key it is."],
    ["Rows to Excel", "Rows in the request, the file in the answer. For larger data give source_url, a paged endpoint of yours."],
    ["A report that takes longer", "Submit, wait, fetch. Instead of waiting you can name a callback."],
    ["A file into the library", "A file is stored once for each content, and checked. Put some release.tar beside the program."],
    ["To hosts", "Each host runs tidegate agent. Requests for one file within a window share one transfer; watch the Job in the console."],
  ],
  zh: [
    ["连接", "第一次调用会显示密钥属于谁。"],
    ["把数据行导出为 Excel", "请求里放数据行，响应就是文件。数据量大时改用 source_url，即你自己的分页接口。"],
    ["耗时较长的报表", "提交、等待、取回。也可以指定回调地址而不必等待。"],
    ["上传文件到文件库", "相同内容只存一份，并校验摘要。请在程序所在目录放一个 release.tar。"],
    ["分发到主机", "每台主机运行 tidegate agent。同一窗口内对同一文件的请求合并为一次传输，可在控制台查看 Job。"],
  ],
};
