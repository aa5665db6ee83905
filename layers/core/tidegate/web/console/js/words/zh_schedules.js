export const zhSchedules = {
  status: { started: "已开始", skipped: "已跳过", resumed: "已恢复", changed: "已修改" },
  schedules: {
    title: "计划", new: "新建计划", none: "还没有计划", last: "上次运行", runs: "运行记录", due: "计划时间", id: "计划编号", change: "修改计划", fields: "导出的其他字段", fieldsHint: "JSON，格式与 API 相同。未写的字段不变；null 表示去掉该字段。", save: "保存计划", saved: "计划已保存",
    exportsLead: "按计划反复生成的导出。", exportsAdvice: "创建第一个：填写导出内容，再选择何时生成。", batchesLead: "按计划反复创建并启动的批次。", batchesAdvice: "创建第一个：填写批次内容，再选择何时创建并启动。",
    noRuns: "还没有运行过", noRunsAdvice: "首次运行时间：{time}。", noRunsPaused: "已暂停：恢复后在下一个时间点运行。", deleteExports: "删除计划“{name}”？已生成的导出保留。", deleteBatches: "删除计划“{name}”？已创建的批次保留。",
    repeatExport: "重复此导出", repeatBatch: "重复此批次", once: "不重复：立即导出一次", onceBatch: "不重复：创建后手动启动", formLead: "填写导出内容并选择生成时间。每次运行都重新读取数据源。", exportHint: "每次运行都重新读取数据源；此处填写的数据行保持不变。地址、查询和文件名中的 {date}、{time}、{from}、{to} 替换为本次运行的时间及自上次运行以来的时段。", batchHint: "到点即创建并启动一个批次；上一批次仍在运行时跳过。",
    timezone: "时区", timezoneHint: "用于 cron 表达式，跟随夏令时。", failedRuns: "连续 {n} 次运行失败。",
    every15: "每 15 分钟", hourly: "每小时", dailyAt: "每天 {time}", onDays: "{days} {time}", daily2: "每天 02:00", weekly: "每周一 06:00", monthly: "每月 1 日 02:00",
  },
  exports: {
    sheetName: "工作表名称", sheetNameHint: "用于 Excel；默认由标题得出。",
    fill: "填充自己设计的工作簿", fillNone: "不填充：普通表格", fillHint: "文件库中的 .xlsx，最大 10 MB。{value} 填入一个值，{column} 所在的行按数据逐行重复。", fillDrop: "将 .xlsx 拖到此处或点击选择，文件会存入文件库。", fillColumns: "表 {n} 的列（{sheet}，第 {row} 行）", fillNoTable: "模板为“{name}”重复一行：请添加以此为标题的表。", fillFrom: "{name} 对应的列",
    schedule: "由计划生成", openSchedule: "所属计划", copies: "副本", emails: "邮件", advanced: "直接数据源、邮件与速率",
    email: "邮件通知", emailHint: "每行一个地址，最多 5 个。文件就绪后各收到一个链接。", source_rate: "对数据源的每秒请求数", sourceRateHint: "项目内所有设置了速率的导出合计。留空则不限。", password: "文件密码", passwordHint: "8 到 100 个 ASCII 字符。工作簿直接加密，其他格式打包为加密的 zip。不能用于定时导出。", unmask: "不使用项目的脱敏规则", unmaskHint: "需要 unmask 权限的密钥，会记入审计日志。", source_timeout: "数据源每页的超时（秒）", sourceTimeoutHint: "每页需要 30 秒以上的数据源使用，最多 600。",
    direct: "直接读取", directNone: "不使用：用上面的数据行或地址", directS3: "S3 中的文件", directHint: "须允许项目读取。此时上面填写的数据行仅用于预览。", bucket: "存储桶", key: "键", keyHint: "带表头行的 CSV，或 JSON Lines；不能是压缩文件。", byEnding: "按扩展名", s3Delimiter: "分隔符", s3Encoding: "编码",
    dynamodbQuery: "DynamoDB 查询", dynamodbHint: "JSON：table、key_condition、values；可选 index、names、filter、attributes、newest_first。", athenaQuery: "Athena 查询", athenaHint: "JSON：workgroup、sql；可选 database、catalog。", oneSource: "地址与直接数据源只能选一个。",
  },
  projects: {
    access: "导出可用的存储桶与表", deliver_to: "副本可存到", read_from: "数据可取自", nowhere: "无", badPattern: "“{line}”不符合格式。{hint}",
    masked: "导出时脱敏的列", masks: "脱敏列", masksHint: "每行一个：列名 = phone、id、card、email，或 开头,结尾（保留的字符数）。", deliver_toHint: "每行一个：桶/键，* 代表任意内容。参数 DeliveryBucket 也须允许该桶。", read_fromHint: "每行一个：s3://桶/键、dynamodb://表、athena://工作组/数据库，或 athena://工作组（其全部数据库）。键中 * 代表任意内容。参数 SourceBucket、SourceTable、SourceWorkgroup 也须允许。",
    stops: "发布的告警", alarms: "可中止发布的告警", alarmsHint: "运维账号中的 CloudWatch 告警。每行一个名称模式，例如 shop-*。区分大小写。",
    aws: "主机的 AWS 角色", aws_roles: "可注册的实例", aws_rolesHint: "每行一个角色：账号/角色 groups=a,b labels=名称=值 replace；除账号/角色外均可省略。角色名须完全一致，不含路径。实例以其实例 ID 作为主机编号；加 replace 后可用原编号重新注册。",
    gse: "GSE 目标", targets: "文件可发往", dirs: "可写入目录", users: "可用用户", targetsHint: "仅当参数 TransferEngine 为 gse 时使用。每行一个：主机（web-*）或容器（web-1/*）；主机的模式不含其容器。区分大小写。",
    dirsHint: "每行一个绝对路径，含其下所有目录。未填则该项目无法发送文件。", usersHint: "每行一个用户名，须与主机上完全一致。",
  },
  polite: { host_downloads: "对该主机的并发下载数" },
  files: { mirrors: "镜像地址", mirrorsHint: "同一文件的其他地址，每行一个，最多 10 个。首个地址失败或过慢时使用。" },
};
