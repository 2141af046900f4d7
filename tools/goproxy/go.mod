module goproxy

go 1.24
