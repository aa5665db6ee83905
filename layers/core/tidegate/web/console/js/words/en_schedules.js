// Words of schedules, of direct sources of exports and of the places that a project may reach.
export const enSchedules = {
  status: { started: "Started", skipped: "Skipped", resumed: "Resumed", changed: "Changed" },
  schedules: {
    title: "Schedules", new: "New schedule", none: "No schedules yet", readOnly: "A key that may write makes the first one.", last: "Last run", lastBatch: "Last batch", runs: "Runs", due: "Due", id: "Schedule id", change: "Change schedule", save: "Save schedule", saved: "The schedule is saved",
    exportsLead: "Exports that are made again and again.", exportsAdvice: "Make the first one: describe the export, then choose when it is made.", batchesLead: "Batches that are made and started again and again.", batchesAdvice: "Make the first one: describe the batch, then choose when it is made and started.",
    noRuns: "It has not run yet", noRunsAdvice: "Its first run is due at {time}.", noRunsPaused: "It is paused: resume it, and it runs at its next moment.", deleteExports: "Delete the schedule “{name}”? Its exports stay.", deleteBatches: "Delete the schedule “{name}”? Its batches stay.",
    repeatExport: "Repeat this export", repeatBatch: "Repeat this batch", once: "no: once, now", onceBatch: "no: once, when you start it", formLead: "Describe the export and choose when it is made. Each run reads its source anew.", exportHint: "Each run reads its source anew; rows typed here stay the same. {date} and {time} in the file name become those of the run.", batchHint: "Each moment makes a batch and starts it, unless the one before still runs.",
    every15: "every 15 minutes", hourly: "every hour", dailyAt: "daily, {time} UTC", onDays: "{days}, {time} UTC", daily2: "daily, 02:00 UTC", weekly: "Mondays, 06:00 UTC", monthly: "on the 1st of the month, 02:00 UTC",
  },
  exports: {
    schedule: "Made by the schedule", openSchedule: "Its schedule", copies: "Copies", emails: "Mail", advanced: "Advanced: direct source, mail, rate",
    email: "Mail a link to", emailHint: "One address a line, at most 5. Each gets a link when the file is ready.", source_rate: "Requests a second to the source", sourceRateHint: "Of all exports of the project that name a rate. Empty: no limit.",
    direct: "Read rows directly from", directNone: "nothing: rows or a URL above", directS3: "a file in S3", directHint: "The project must be allowed to read it. Rows typed above are then only for the preview.", bucket: "Bucket", key: "Key", keyHint: "CSV with a head line, or JSON lines; not packed.", byEnding: "by its ending", s3Delimiter: "Delimiter", s3Encoding: "Encoding",
    dynamodbQuery: "DynamoDB query", dynamodbHint: "JSON: table, key_condition and values; also index, names, filter, attributes, newest_first.", athenaQuery: "Athena query", athenaHint: "JSON: workgroup and sql; also database, catalog.", needed: "This is needed.", oneSource: "Name a URL or a direct source, not both.",
  },
  projects: {
    access: "Buckets and tables of exports", deliver_to: "Copies may go to", read_from: "Rows may come from", nowhere: "nowhere", badPattern: "“{line}” is not such a pattern. {hint}",
    deliver_toHint: "One pattern a line: bucket/key, * stands for anything. The parameter DeliveryBucket must allow the bucket too.", read_fromHint: "One pattern a line: s3://bucket/key, dynamodb://table or athena://workgroup. In a key, * stands for anything. The parameters SourceBucket, SourceTable and SourceWorkgroup must allow it too.",
  },
  polite: { host_downloads: "Downloads from the host at once" },
  files: { mirrors: "Other addresses of it", mirrorsHint: "One a line, at most 10. Used where the first fails or is slow." },
};
