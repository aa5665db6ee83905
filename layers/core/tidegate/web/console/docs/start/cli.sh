# step
alias tidegate=.venv/bin/tidegate      # in a clone
tidegate file list
# step
echo '[{"order": "A-1", "amount": "12.50"}]' > orders.json
tidegate export submit --name orders --type excel --data orders.json --watch -o orders.xlsx
# step
tidegate export submit --name orders --type excel --data orders.json     # → TASK
tidegate watch TASK
tidegate export get TASK -o report.xlsx
# step
tidegate file put release.tar --biz-id 2 --app-id 3 --file-path /releases/release.tar     # → FILE
# step
tidegate distribute submit --file FILE --target host-1 --user root --dir /srv/releases --watch
