module llmbench

go 1.22
