PRAGMA application_id = 1466322279;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "entries" VALUES(1,1,'[{"job_created":{"message":{"n":1,"large":12345678901234567890}}},{"step_started":{"step":0,"attempt":1,"at":1795336945758996377}}]',3285449770);
INSERT INTO "entries" VALUES(2,1,'[{"step_confirmed":{"step":0}}]',420588887);
INSERT INTO "entries" VALUES(3,2,'[{"job_created":{"message":{"n":2}}},{"step_started":{"step":0,"attempt":1,"at":1795336945770091234}}]',3891941955);
INSERT INTO "entries" VALUES(4,1,'[{"step_completed":{"step":0,"at":1795336945771783335,"output":{"n":1.1}}},{"step_started":{"step":1,"attempt":1,"at":1795336945771783335}}]',1345815124);
INSERT INTO "entries" VALUES(5,2,'[{"step_confirmed":{"step":0}}]',3398087084);
INSERT INTO "entries" VALUES(6,1,'[{"step_confirmed":{"step":1}}]',2712521266);
INSERT INTO "entries" VALUES(7,2,'[{"step_completed":{"step":0,"at":1795336945798519925,"output":{"n":2}}},{"step_started":{"step":1,"attempt":1,"at":1795336945798519925}}]',4251036229);
INSERT INTO "entries" VALUES(8,2,'[{"step_confirmed":{"step":1}}]',1916196553);
INSERT INTO "entries" VALUES(9,2,'[{"step_completed":{"step":1,"at":1795336945821444518,"output":{"n":2}}},{"step_started":{"step":2,"attempt":1,"at":1795336945821444518}}]',1613319231);
INSERT INTO "entries" VALUES(10,2,'[{"step_confirmed":{"step":2}}]',1619228967);
INSERT INTO "entries" VALUES(11,2,'[{"step_completed":{"step":2,"at":1795336945846507815,"output":{"sum":6}}},{"job_completed":{"at":1795336945846507815}}]',1251204915);
INSERT INTO "entries" VALUES(12,3,'[{"job_created":{"message":{"n":3}}},{"step_started":{"step":0,"attempt":1,"at":1795336945875254321}}]',2010777118);
INSERT INTO "entries" VALUES(13,3,'[{"step_confirmed":{"step":0}}]',2214836741);
INSERT INTO "entries" VALUES(14,3,'[{"step_completed":{"step":0,"at":1795336945884768559,"output":{"n":3}}},{"step_started":{"step":1,"attempt":1,"at":1795336945884768559}}]',3505305749);
INSERT INTO "entries" VALUES(15,3,'[{"step_confirmed":{"step":1}}]',1019207008);
INSERT INTO "entries" VALUES(16,3,'[{"step_completed":{"step":1,"at":1795336945910116757,"output":{"n":3}}},{"step_started":{"step":2,"attempt":1,"at":1795336945910116757}}]',721337211);
INSERT INTO "entries" VALUES(17,3,'[{"step_confirmed":{"step":2}}]',772436622);
INSERT INTO "entries" VALUES(18,3,'[{"step_failed":{"step":2,"at":1795336945930899929,"failure":{"reason":"the worker reported an error: no"}}},{"job_failed":{"at":1795336945930899929,"reason":"step \"c\": the worker reported an error: no"}}]',3604235043);
INSERT INTO "entries" VALUES(19,4,'[{"job_created":{"message":{"n":4}}},{"step_started":{"step":0,"attempt":1,"at":1795336945956755699}}]',3064253473);
INSERT INTO "entries" VALUES(20,5,'[{"job_created":{"message":{}}},{"step_started":{"step":0,"attempt":1,"at":1795336945960363037}}]',9477656);
INSERT INTO "entries" VALUES(21,4,'[{"step_confirmed":{"step":0}}]',3066924571);
INSERT INTO "entries" VALUES(22,5,'[{"step_confirmed":{"step":0}}]',4165240242);
INSERT INTO "entries" VALUES(23,5,'[{"step_completed":{"step":0,"at":1795336945967219781,"output":{"sections":["x", "y"],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795336945967219781,"items":2}},{"children_started":{"step":1,"from":0,"count":2}}]',3308497498);
INSERT INTO "entries" VALUES(24,6,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336945970145564}}]',2861342541);
INSERT INTO "entries" VALUES(25,7,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336945970761276}}]',3026062899);
INSERT INTO "entries" VALUES(26,6,'[{"step_confirmed":{"step":0}}]',736074057);
INSERT INTO "entries" VALUES(27,7,'[{"step_confirmed":{"step":0}}]',1700172512);
INSERT INTO "entries" VALUES(28,6,'[{"step_completed":{"step":0,"at":1795336945989855101,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795336945989855101}}]',834089326);
INSERT INTO "entries" VALUES(29,6,'[{"step_confirmed":{"step":1}}]',2472803884);
INSERT INTO "entries" VALUES(30,6,'[{"step_completed":{"step":1,"at":1795336946012714259,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795336946012714259}}]',3914150842);
INSERT INTO "entries" VALUES(31,7,'[{"step_completed":{"step":0,"at":1795336946013835546,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795336946013835546}}]',3973456690);
INSERT INTO "entries" VALUES(32,5,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 1, "good": true}]}}]',1533732189);
INSERT INTO "entries" VALUES(33,7,'[{"step_confirmed":{"step":1}}]',3723163013);
INSERT INTO "entries" VALUES(34,7,'[{"step_completed":{"step":1,"at":1795336946036448105,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795336946036448105}}]',1089970527);
INSERT INTO "entries" VALUES(35,5,'[{"child_completed":{"step":1,"index":1,"item":[0,{"kg": 1, "good": true}]}},{"fan_out_completed":{"step":1,"at":1795336946042224165}},{"step_started":{"step":2,"attempt":1,"at":1795336946042224165}}]',2956286018);
INSERT INTO "entries" VALUES(36,5,'[{"step_confirmed":{"step":2}}]',1380797753);
INSERT INTO "entries" VALUES(37,5,'[{"step_completed":{"step":2,"at":1795336946063465958,"output":{"kg":2}}},{"job_completed":{"at":1795336946063465958}}]',1184965967);
INSERT INTO "entries" VALUES(38,8,'[{"job_created":{"message":{"from":"a client"}}},{"step_started":{"step":0,"attempt":1,"at":1795336946090636989}}]',2757344369);
INSERT INTO "entries" VALUES(39,8,'[{"step_confirmed":{"step":0}}]',1313075573);
INSERT INTO "entries" VALUES(40,8,'[{"step_completed":{"step":0,"at":1795336946095295463,"output":{"sections":[1, 2, 3, 4, 5],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795336946095295463,"items":5}},{"children_started":{"step":1,"from":0,"count":5}}]',993847854);
INSERT INTO "entries" VALUES(41,9,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336946096291534}}]',3327691297);
INSERT INTO "entries" VALUES(42,10,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336946096569606}}]',3516487165);
INSERT INTO "entries" VALUES(43,12,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336946096604468}}]',1378777328);
INSERT INTO "entries" VALUES(44,11,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336946096628907}}]',3524109279);
INSERT INTO "entries" VALUES(45,13,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336946096644095}}]',1812029705);
INSERT INTO "entries" VALUES(46,9,'[{"step_confirmed":{"step":0}}]',13302492);
INSERT INTO "entries" VALUES(47,12,'[{"step_confirmed":{"step":0}}]',2937510288);
INSERT INTO "entries" VALUES(48,13,'[{"step_confirmed":{"step":0}}]',3785347641);
INSERT INTO "entries" VALUES(49,11,'[{"step_confirmed":{"step":0}}]',2648239502);
INSERT INTO "entries" VALUES(50,10,'[{"step_confirmed":{"step":0}}]',3545359911);
INSERT INTO "entries" VALUES(51,9,'[{"step_completed":{"step":0,"at":1795336946123429216,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336946123429216}}]',3056496481);
INSERT INTO "entries" VALUES(52,10,'[{"step_completed":{"step":0,"at":1795336946127973879,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336946127973879}}]',326967439);
INSERT INTO "entries" VALUES(53,9,'[{"step_confirmed":{"step":1}}]',3094781369);
INSERT INTO "entries" VALUES(54,12,'[{"step_completed":{"step":0,"at":1795336946135521955,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336946135521955}}]',1388330152);
INSERT INTO "entries" VALUES(55,10,'[{"step_confirmed":{"step":1}}]',1810727234);
INSERT INTO "entries" VALUES(56,9,'[{"step_completed":{"step":1,"at":1795336946137675459,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795336946137675459}}]',3740448799);
INSERT INTO "entries" VALUES(57,10,'[{"step_completed":{"step":1,"at":1795336946138460331,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795336946138460331}}]',378874206);
INSERT INTO "entries" VALUES(58,8,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 2, "good": true}]}}]',2370560538);
INSERT INTO "entries" VALUES(59,8,'[{"child_completed":{"step":1,"index":1,"item":[0,{"kg": 2, "good": true}]}}]',3284330931);
INSERT INTO "entries" VALUES(60,12,'[{"step_confirmed":{"step":1}}]',397065973);
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795336945758901945,'running',NULL,1,1035777797);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795336945769820984,'completed',1795336945846507815,0,3563067825);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795336945875183479,'failed',1795336945930899929,0,1537097960);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795336945956698076,'running',NULL,1,1100537601);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795336945960282027,'completed',1795336946063465958,0,1901115657);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795336945970084739,'completed',1795336946012714259,0,1233258899);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795336945970717049,'completed',1795336946036448105,0,2917219539);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795336946090558621,'running',NULL,1,3312644322);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795336946096233872,'completed',1795336946137675459,0,2192576103);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795336946096437019,'completed',1795336946138460331,0,3898911582);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795336946096495965,'running',NULL,1,2453130668);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795336946096501952,'running',NULL,1,4138508164);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795336946096519795,'running',NULL,1,118640668);
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_retained ON jobs(ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX entries_by_job ON entries(job);
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
COMMIT;
