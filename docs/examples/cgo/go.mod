module horon.example/cgo

go 1.19
