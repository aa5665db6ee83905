// Words of the pages for operators, hosts and sources; the groups go together with those of en.js.
export const enPages = {
  nav: { fleet: "Fleet", ingest: "Ingest", operate: "Operate" },
  unknown: { title: "No such page", what: "Nothing is at {address}", advice: "The link may be old or mistyped. The areas at the side and the search (/) lead on." },
  find: { title: "Search", short: "Search", keys: "Search: / or ⌘K", placeholder: "A name, an id, a host, a file or a page", hint: "↑ ↓ choose, Enter opens, Esc closes. The newest hundred of each kind are searched as you type, older ones by their whole id.", none: "Nothing has this name or id.", page: "Page" },
  error: { requestId: "request id" },
  action: { copy: "Press to copy", create: "Create", change: "Change", saved: "Saved", yes: "yes", no: "no" },
  status: { active: "Active", revoked: "Revoked", online: "Online", offline: "Offline", ok: "OK", alarm: "Alarm", insufficient_data: "No data yet", allowed: "Allowed", off: "Off", waiting: "Waiting", deleting: "Being deleted" },
  event: { begun: "begun", "goes on": "goes on", done: "done", failed: "failed", stopped: "stopped", died: "its function died" },
  operate: { projects: "Projects", keys: "Admin keys", credentials: "Credentials", audit: "Audit", archive: "Archive", system: "Deployment" },
  projects: {
    lead: "Tenants: each sees only its own records.", new: "New project", none: "No projects yet", noneAdvice: "Make the first one, then a key for it.", group: "Group", groupHint: "Optional; for your own order.",
    private: "Private addresses", privateHint: "Its sources and callbacks may be at private addresses (10.…, 127.0.0.1). Only for projects that you trust.", made: "{name} is there; make a key for it", change: "Change project",
    quotas: "Quotas and usage", stored_bytes: "Stored bytes", queued: "Requests in the queue", requests_per_s: "Requests a second", share: "Slots by channel", shareHint: "One a line: the channel, then how many slots it may hold while others wait.",
    limitHint: "Empty: no limit.", noLimit: "no limit", swarm: "Hosts feed each other", swarmMode: "Swarm", swarmAuto: "Automatic", swarmOff: "Off", peerNetworks: "Networks of peers", freeSites: "Sites without traffic cost", perLine: "One a line.",
    secret: "Callback secret", secretWhat: "Signs every callback. A new one is used beside the present one until that is retired.", newSecret: "New secret", secretOnce: "Shown this once. Give it to the receivers, then retire the old one.", endSecret: "Retire the old one", secretEnded: "The old secret is retired",
  },
  keys: {
    title: "Keys", adminLead: "For operators of the whole deployment. Keys of a project are on its page.", new: "New key", none: "No keys", noneAdvice: "Without a key nobody can use this project.", unnamed: "Without a name", scopes: "May", lastUsed: "Last used", expires: "Expires",
    rotate: "Rotate", revoke: "Revoke", revokeSure: "Revoke “{name}”? Whoever uses it is locked out.", revoked: "Revoked", days: "{n} days", nameHint: "Who or what uses it.", readWrite: "read and write", readOnly: "read only", agent: "one host (agent)", agentHint: "For a host's key: the id of the host.",
    rotateWhat: "A new key with the same rights. The old one goes on working for the overlap, so that nothing stops.", overlap: "The old key works for", atOnce: "no longer", made: "The new key", once: "It is shown this once: copy it now. Only its hash is stored.",
  },
  credentials: {
    lead: "Headers that sources ask for. They can be replaced, never read, and go to their origins only.", new: "Store a credential", none: "No credentials", noneAdvice: "Store one if a source wants a cookie or a token.", origins: "Sent to", headers: "Headers", by: "By", replace: "Replace",
    deleteSure: "Forget “{name}”? Sources that need it will fail.", nameHint: "Letters, digits, - and _. Sources name it.", originsHint: "One a line: https://host or https://host:port.", headersHint: "One a line: Name: value. Kept in Secrets Manager.",
  },
  audit: { lead: "Every act that changed something: who, when, why.", since: "Since", last1h: "Last hour", last24h: "Last day", last7d: "Last week", record: "Record", actor: "Actor (key id)", action: "Act", at: "When", only: "only this", system: "Tidegate", why: "Why", none: "No acts here", noneAdvice: "Take a filter away, or look further back." },
  archive: {
    lead: "Finished requests leave the table when their time is over, and are kept here by day.", day: "Day", clean: "Clean up now", cleanSure: "Remove what is past its time?", cleaned: "{n} records and {objects} objects removed", none: "Nothing left the table on {day}", noneAdvice: "Choose another day. The clean-up runs at 02:00.",
    kept: "How long things are kept", requests: "Requests", requestsKept: "until the clean-up after their retention; then here", exports: "Files of exports", exportsKept: "7 days", distribution: "Jobs and Tasks", distributionKept: "RecordTtlSeconds after their last change (30 minutes unless set)", audit: "Audit lines", auditKept: "60 days",
  },
  system: { lead: "Stack {stack}, version {version}", alarms: "Alarms", means: "Meaning", since: "Since", parameters: "Parameters", parametersWhat: "As deployed; change them with sam deploy." },
  fleet: {
    lead: "Hosts that receive files, and whether they can be reached now.", filter: "Hosts by state", group: "Group", goTo: "Host id", groups: "Groups", zone: "Zone", version: "Agent version", host: "Host", free: "Free space", lastSeen: "Last seen", labels: "Labels", enrol: "Add hosts", none: "No hosts yet",
    noneAdvice: "Make a token, and start tidegate agent with it on a host.", noneAsk: "An admin makes a token; tidegate agent is started with it on a host.", enrolWhat: "A token with which new hosts get their own keys.", uses: "For how many hosts", groupsHint: "Separated by commas.", labelsHint: "name=value, separated by commas.", makeToken: "Make token", token: "Token",
    tokenOnce: "Shown this once, valid until {until}.", onTheHost: "On the host", change: "Groups and labels", forget: "Forget host", forgetSure: "Forget {name}? The key that it enrolled with ends.", forgotten: "Forgotten", now: "Fetching now", idle: "Nothing to fetch", idleAdvice: "Everything sent to this host has ended.",
  },
  jobs: {
    map: "All targets", mapHint: "A square is a target. Point at one for its name, press it for its host.", searchTarget: "Host name", waves: "Waves", waveTargets: "{n} targets", waveWait: "then wait {time}", waveLimit: "goes on if at most {n}% fail", bytes: "Where the bytes came from", moved: "Moved", meanSpeed: "Mean speed of a host", speedNow: "Speed",
    hostsTold: "Hosts that told", fallbacks: "Went back to S3", cancel: "Cancel Job", cancelSure: "Call this Job off? What has arrived stays.", cancelled: "Called off", redrive: "Try {n} again", redriven: "A new Job of what failed", redriveOf: "Tries again", windowOpen: "The window is open for another {time}: whoever asks for this file meanwhile shares this Job. Then it is sent.",
    windowClosing: "The window has closed; the Job is being sent.", windowIsOpen: "The window is open", groupsAndWaves: "Groups, waves and more", groupsHint: "Instead of targets: every host of these groups.", wavesHint: "One a line: percent of the hosts, seconds to wait, percent that may fail. The last is 100.", mode: "File mode", asProject: "As the project says",
  },
  ingest: {
    lead: "Sources that are looked at on a schedule; what is new comes into the library.", new: "New source", none: "No sources yet", noneAdvice: "Name a list, a feed, a web directory or a bucket; you see what it would bring before you save it.", source: "Source", schedule: "Schedule", byHand: "by hand", next: "Next run", lastScan: "Last looked at",
    formLead: "Preview it first: nothing is fetched before you save.", preview: "Preview", previewHint: "Press Preview to see which files the source has and which of them would come.", url: "Address", urlHint: "A JSON list, an RSS or Atom feed, an HTML directory, a SHA256SUMS file, a sitemap or s3://bucket/prefix.", format: "Format",
    format_auto: "Tell by itself", format_json: "JSON list", format_html: "HTML directory", format_rss: "RSS", format_atom: "Atom", format_s3: "S3 listing", format_sums: "SHA256SUMS", format_sitemap: "Sitemap", every15: "every 15 minutes", hourly: "every hour", daily2: "daily, 02:00 UTC", weekly: "Mondays, 06:00 UTC", other: "another …",
    scheduleOther: "Schedule expression", scheduleHint: "rate(n minutes) or cron(minute hour day month weekday year), in UTC.", include: "Only these", exclude: "Not these", globHint: "One a line, as *.iso", path: "Path in the library", pathHint: "Empty: as in the source.", credential: "Credential", credentialHint: "A stored name.", found: "{format}: {chosen} of {listed} files would come.",
    nothing: "Nothing would come", nothingAdvice: "Check the address, the format and the patterns.", made: "Saved", when: "When", id: "Subscription id", requests: "Its requests", noRequests: "Nothing yet", noRequestsAdvice: "Look at the source now, or wait for its schedule.", scanNow: "Look now", scanning: "Looking at the source", deleteSure: "Forget “{name}” and cancel what it queued?",
  },
  log: { title: "Execution log", none: "No steps yet", noneAdvice: "Ingest requests write a line for each step.", attempt: "attempt {n}", stack: "Stack" },
  callbacks: { body: "What is sent" },
  queue: { week: "Last seven days", mean: "Mean", retryAll: "Retry all failed", firstAll: "All to the front", cancelAll: "Cancel all", cancelAllSure: "Cancel every request that the filter finds?", bulkDone: "{n} changed", openSubscription: "Its source" },
  batches: {
    businesses: "Businesses", businessesLead: "Who handles the items: URLs that get a signed POST.", noBusinesses: "No businesses yet", sharedRate: "Rate of all its batches", sharedRateHint: "Items a second, together. Empty: each batch its own.", hooks: "Also told", authCodeAgain: "Give it again, or it is taken away.", filter: "Batches by status", onFailure: "If an item fails",
    failureStop: "stop the batch", failureSkip: "skip the item", retries: "Attempts an item", maxFailed: "Tolerate failed items", maxFailedPercent: "Tolerate, in percent", concurrency: "Calls at once", itemsPerCall: "Items a call", itemTimeout: "Seconds for an answer", ack: "Answer", ackSync: "at once", ackAsync: "later, by POST …/result", totalHint: "The batch calls for index 0 to total − 1.",
    item: "Item", answer: "Answer", noOutcomes: "Every item simply succeeded so far", noOutcomesAdvice: "Items that failed, were abandoned or needed a retry are listed here.", chartHint: "Items a second since this page was opened; the dashed line is the rate asked for.", id: "Batch id", exportLogs: "Logs as CSV", eta: "Expected end",
  },
  exports: {
    warnings: "Warnings", nWarnings: "{n} warnings", columns: "Columns", addColumn: "Add column", addGroup: "Add group", columnTitle: "Title", columnField: "Field", columnType: "Type", columnFormat: "Format", asJson: "As JSON", moveUp: "Up", moveDown: "Down", nest: "Into the one above", unnest: "Out of its group", removeColumn: "Remove",
    editorHint: "Drag a column onto another to nest it, between two to move it.", editorSides: "Heads at the side are edited as JSON below.", pull: "Pull sample rows", pulled: "{n} sample rows of {total}", type_string: "Text", type_number: "Number", type_date: "Date", type_datetime: "Date and time", type_currency: "Currency", type_percent: "Percent", type_boolean: "Yes or no", type_link: "Link", type_: "as it is",
    fromRows: "Columns from the rows", newGroup: "Group", newColumn: "Column", drag: "Move {name}", typeLabel: "Type of {name}",
  },
  files: { fetch: "Fetch from an address", signatureHint: "If you know it, the file is refused unless it matches.", fetching: "The file is being fetched", deleteSure: "Delete {name} from the library?" },
};
