// Texts of schedules, direct sources of exports, and the access of projects.
export const enSchedules = {
  status: { started: "Started", skipped: "Skipped", resumed: "Resumed", changed: "Changed" },
  schedules: {
    title: "Schedules", new: "New schedule", none: "No schedules yet", last: "Last run", runs: "Runs", due: "Due", id: "Schedule id", change: "Change schedule", fields: "Other fields of the export", fieldsHint: "JSON, as the API takes it. Fields that are left out stay as they are; null removes one.", save: "Save schedule", saved: "The schedule is saved",
    exportsLead: "Exports that run on a schedule.", exportsAdvice: "Create the first one: describe the export, then choose when it runs.", batchesLead: "Batches that run on a schedule.", batchesAdvice: "Create the first one: describe the batch, then choose when it runs.",
    noRuns: "It has not run yet", noRunsAdvice: "Its first run is due at {time}.", noRunsPaused: "It is paused. After you resume it, it runs at its next time.", deleteExports: "Delete the schedule “{name}”? Its exports stay.", deleteBatches: "Delete the schedule “{name}”? Its batches stay.",
    repeatExport: "Repeat this export", repeatBatch: "Repeat this batch", once: "no: export once, now", onceBatch: "no: create it once, start it by hand", formLead: "Describe the export and choose when it runs. Each run reads its source again.", exportHint: "Each run reads its source again; rows typed here stay the same. {date}, {time}, {from} and {to} in its address, query and file name become those of the run and of the period since the last one.", batchHint: "Each run creates a batch and starts it, unless the one before is still running.",
    timezone: "Time zone", timezoneHint: "Of a cron expression. Daylight saving time is followed.", failedRuns: "{n} runs failed in succession.",
    every15: "every 15 minutes", hourly: "every hour", dailyAt: "daily, {time}", onDays: "{days}, {time}", daily2: "daily, 02:00", weekly: "Mondays, 06:00", monthly: "on the 1st of the month, 02:00",
  },
  exports: {
    schedule: "Made by the schedule", openSchedule: "Its schedule", copies: "Copies", emails: "Mail", advanced: "Direct source, mail and rate",
    email: "Mail a link to", emailHint: "One address per line, at most 5. Each gets a link when the file is ready.", source_rate: "Requests per second to the source", sourceRateHint: "For all exports of the project that set a rate, together. No limit if empty.", password: "Password of the file", passwordHint: "8 to 100 characters of ASCII. Encrypts a workbook; other formats become an encrypted zip. Not for recurring exports.", unmask: "Without the masks of the project", unmaskHint: "Needs a key of scope unmask; the audit log shows it.", source_timeout: "Seconds per page of the source", sourceTimeoutHint: "For sources that need longer than 30 s for a page; at most 600.",
    direct: "Read rows directly from", directNone: "not used: rows or a URL above", directS3: "a file in S3", directHint: "The project must be allowed to read it. Rows typed above are then only for the preview.", bucket: "Bucket", key: "Key", keyHint: "CSV with a line of headings, or JSON lines; not compressed.", byEnding: "by the file name", s3Delimiter: "Delimiter", s3Encoding: "Encoding",
    dynamodbQuery: "DynamoDB query", dynamodbHint: "JSON: table, key_condition and values; also index, names, filter, attributes, newest_first.", athenaQuery: "Athena query", athenaHint: "JSON: workgroup and sql; also database, catalog.", oneSource: "Give a URL or a direct source, not both.",
  },
  projects: {
    access: "Buckets and tables of exports", deliver_to: "Copies may go to", read_from: "Rows may come from", nowhere: "nowhere", badPattern: "“{line}” has another form. {hint}",
    masked: "Columns that exports hide", masks: "Masked columns", masksHint: "One per line: column = phone, id, card, email, or START,END, the characters that stay visible.", deliver_toHint: "One pattern per line: bucket/key, * stands for anything. The parameter DeliveryBucket must allow the bucket too.", read_fromHint: "One pattern per line: s3://bucket/key, dynamodb://table, athena://workgroup/database, or athena://workgroup for all its databases. In a key, * stands for anything. The parameters SourceBucket, SourceTable and SourceWorkgroup must allow it too.",
    stops: "Alarms of releases", alarms: "Alarms that may stop releases", alarmsHint: "CloudWatch alarms of the operator's account. One pattern of names per line, such as shop-*. Letter case counts.",
    gse: "Targets with GSE", targets: "Files may go to", dirs: "Into directories", users: "As users", targetsHint: "Used only if the parameter TransferEngine is gse. One pattern per line: a host (web-*) or a container (web-1/*); a host's pattern does not include its containers. Letter case counts.",
    dirsHint: "One absolute directory per line; everything below it is included. Without one, the project sends nothing.", usersHint: "One name per line, exactly as on the host.",
  },
  polite: { host_downloads: "Downloads from the host at once" },
  files: { mirrors: "Mirrors", mirrorsHint: "Other addresses of the same file, one per line, at most 10. Used if the first one fails or is slow." },
};
