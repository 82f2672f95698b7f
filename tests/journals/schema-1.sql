PRAGMA application_id = 1466322279;
PRAGMA user_version = 1;
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
INSERT INTO "entries" VALUES(1,1,'[{"job_created":{"message":{"n":1,"large":12345678901234567890}}},{"step_started":{"step":0,"attempt":1,"at":1795336947787558655}}]',4172335285);
INSERT INTO "entries" VALUES(2,1,'[{"step_confirmed":{"step":0}}]',420588887);
INSERT INTO "entries" VALUES(3,1,'[{"step_completed":{"step":0,"at":1795336947827309188,"output":{"n":1.1}}},{"step_started":{"step":1,"attempt":1,"at":1795336947827309188}}]',2074449918);
INSERT INTO "entries" VALUES(4,2,'[{"job_created":{"message":{"n":2}}},{"step_started":{"step":0,"attempt":1,"at":1795336947828223162}}]',414061364);
INSERT INTO "entries" VALUES(5,1,'[{"step_confirmed":{"step":1}}]',2712521266);
INSERT INTO "entries" VALUES(6,2,'[{"step_confirmed":{"step":0}}]',3398087084);
INSERT INTO "entries" VALUES(7,2,'[{"step_completed":{"step":0,"at":1795336947840033779,"output":{"n":2}}},{"step_started":{"step":1,"attempt":1,"at":1795336947840033779}}]',2186485089);
INSERT INTO "entries" VALUES(8,2,'[{"step_confirmed":{"step":1}}]',1916196553);
INSERT INTO "entries" VALUES(9,2,'[{"step_completed":{"step":1,"at":1795336947863960035,"output":{"n":2}}},{"step_started":{"step":2,"attempt":1,"at":1795336947863960035}}]',245865114);
INSERT INTO "entries" VALUES(10,2,'[{"step_confirmed":{"step":2}}]',1619228967);
INSERT INTO "entries" VALUES(11,2,'[{"step_completed":{"step":2,"at":1795336947887683334,"output":{"sum":6}}},{"job_completed":{"at":1795336947887683334}}]',983812027);
INSERT INTO "entries" VALUES(12,3,'[{"job_created":{"message":{"n":3}}},{"step_started":{"step":0,"attempt":1,"at":1795336947917074648}}]',2922766630);
INSERT INTO "entries" VALUES(13,3,'[{"step_confirmed":{"step":0}}]',2214836741);
INSERT INTO "entries" VALUES(14,3,'[{"step_completed":{"step":0,"at":1795336947956265729,"output":{"n":3}}},{"step_started":{"step":1,"attempt":1,"at":1795336947956265729}}]',25711983);
INSERT INTO "entries" VALUES(15,3,'[{"step_confirmed":{"step":1}}]',1019207008);
INSERT INTO "entries" VALUES(16,3,'[{"step_completed":{"step":1,"at":1795336947979335245,"output":{"n":3}}},{"step_started":{"step":2,"attempt":1,"at":1795336947979335245}}]',3724211758);
INSERT INTO "entries" VALUES(17,3,'[{"step_confirmed":{"step":2}}]',772436622);
INSERT INTO "entries" VALUES(18,3,'[{"step_failed":{"step":2,"at":1795336948004185281,"failure":{"reason":"the worker reported an error: no"}}},{"job_failed":{"at":1795336948004185281,"reason":"step \"c\": the worker reported an error: no"}}]',1945191485);
INSERT INTO "entries" VALUES(19,4,'[{"job_created":{"message":{"n":4}}},{"step_started":{"step":0,"attempt":1,"at":1795336948028279480}}]',2573294729);
INSERT INTO "entries" VALUES(20,5,'[{"job_created":{"message":{}}},{"step_started":{"step":0,"attempt":1,"at":1795336948039089685}}]',3567265857);
INSERT INTO "entries" VALUES(21,4,'[{"step_confirmed":{"step":0}}]',3066924571);
INSERT INTO "entries" VALUES(22,5,'[{"step_confirmed":{"step":0}}]',4165240242);
INSERT INTO "entries" VALUES(23,5,'[{"step_completed":{"step":0,"at":1795336948066555787,"output":{"sections":["x", "y"],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795336948066555787,"items":2}},{"children_started":{"step":1,"from":0,"count":2}}]',3943743989);
INSERT INTO "entries" VALUES(24,6,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948078192037}}]',3085180708);
INSERT INTO "entries" VALUES(25,7,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948079141607}}]',855439490);
INSERT INTO "entries" VALUES(26,7,'[{"step_confirmed":{"step":0}}]',1700172512);
INSERT INTO "entries" VALUES(27,6,'[{"step_confirmed":{"step":0}}]',736074057);
INSERT INTO "entries" VALUES(28,6,'[{"step_completed":{"step":0,"at":1795336948089541249,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795336948089541249}}]',521558186);
INSERT INTO "entries" VALUES(29,6,'[{"step_confirmed":{"step":1}}]',2472803884);
INSERT INTO "entries" VALUES(30,6,'[{"step_completed":{"step":1,"at":1795336948112945641,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795336948112945641}}]',3480035509);
INSERT INTO "entries" VALUES(31,7,'[{"step_completed":{"step":0,"at":1795336948113805915,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795336948113805915}}]',1430126569);
INSERT INTO "entries" VALUES(32,5,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 1, "good": true}]}}]',1533732189);
INSERT INTO "entries" VALUES(33,7,'[{"step_confirmed":{"step":1}}]',3723163013);
INSERT INTO "entries" VALUES(34,7,'[{"step_completed":{"step":1,"at":1795336948136467553,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795336948136467553}}]',287287769);
INSERT INTO "entries" VALUES(35,5,'[{"child_completed":{"step":1,"index":1,"item":[0,{"kg": 1, "good": true}]}},{"fan_out_completed":{"step":1,"at":1795336948142208535}},{"step_started":{"step":2,"attempt":1,"at":1795336948142208535}}]',2386095316);
INSERT INTO "entries" VALUES(36,5,'[{"step_confirmed":{"step":2}}]',1380797753);
INSERT INTO "entries" VALUES(37,5,'[{"step_completed":{"step":2,"at":1795336948166085136,"output":{"kg":2}}},{"job_completed":{"at":1795336948166085136}}]',3801191508);
INSERT INTO "entries" VALUES(38,8,'[{"job_created":{"message":{"from":"a client"}}},{"step_started":{"step":0,"attempt":1,"at":1795336948186385773}}]',4168615528);
INSERT INTO "entries" VALUES(39,8,'[{"step_confirmed":{"step":0}}]',1313075573);
INSERT INTO "entries" VALUES(40,8,'[{"step_completed":{"step":0,"at":1795336948192461979,"output":{"sections":[1, 2, 3, 4, 5],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795336948192461979,"items":5}},{"children_started":{"step":1,"from":0,"count":5}}]',2482887946);
INSERT INTO "entries" VALUES(41,9,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948196631716}}]',4130782682);
INSERT INTO "entries" VALUES(42,11,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948197126798}}]',128683517);
INSERT INTO "entries" VALUES(43,13,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948197164770}}]',1362058935);
INSERT INTO "entries" VALUES(44,10,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948197140775}}]',3196112357);
INSERT INTO "entries" VALUES(45,12,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336948197301560}}]',3404251827);
INSERT INTO "entries" VALUES(46,9,'[{"step_confirmed":{"step":0}}]',13302492);
INSERT INTO "entries" VALUES(47,12,'[{"step_confirmed":{"step":0}}]',2937510288);
INSERT INTO "entries" VALUES(48,11,'[{"step_confirmed":{"step":0}}]',2648239502);
INSERT INTO "entries" VALUES(49,10,'[{"step_confirmed":{"step":0}}]',3545359911);
INSERT INTO "entries" VALUES(50,13,'[{"step_confirmed":{"step":0}}]',3785347641);
INSERT INTO "entries" VALUES(51,9,'[{"step_completed":{"step":0,"at":1795336948226141845,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336948226141845}}]',3060028653);
INSERT INTO "entries" VALUES(52,11,'[{"step_completed":{"step":0,"at":1795336948229910675,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336948229910675}}]',1129445379);
INSERT INTO "entries" VALUES(53,13,'[{"step_completed":{"step":0,"at":1795336948234274052,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336948234274052}}]',1789399311);
INSERT INTO "entries" VALUES(54,9,'[{"step_confirmed":{"step":1}}]',3094781369);
INSERT INTO "entries" VALUES(55,9,'[{"step_completed":{"step":1,"at":1795336948238423634,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795336948238423634}}]',4099831701);
INSERT INTO "entries" VALUES(56,8,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 2, "good": true}]}}]',2370560538);
INSERT INTO "entries" VALUES(57,11,'[{"step_confirmed":{"step":1}}]',627346155);
INSERT INTO "entries" VALUES(58,11,'[{"step_completed":{"step":1,"at":1795336948240387106,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795336948240387106}}]',2695542687);
INSERT INTO "entries" VALUES(59,13,'[{"step_confirmed":{"step":1}}]',1495512412);
INSERT INTO "entries" VALUES(60,8,'[{"child_completed":{"step":1,"index":2,"item":[0,{"kg": 2, "good": true}]}}]',274330952);
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
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795336947787370597,'running',NULL,1,3826373660);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795336947827847574,'completed',1795336947887683334,0,2374580055);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795336947916925131,'failed',1795336948004185281,0,1059283193);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795336948028148864,'running',NULL,1,3014063180);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795336948038945992,'completed',1795336948166085136,0,1023015628);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795336948078097481,'completed',1795336948112945641,0,582242260);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795336948078730458,'completed',1795336948136467553,0,1276719043);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795336948185912388,'running',NULL,1,3260700555);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795336948196504345,'completed',1795336948238423634,0,3745037168);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795336948197054070,'running',NULL,1,3152703410);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795336948197070329,'completed',1795336948240387106,0,4180960573);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795336948197074574,'running',NULL,1,1276235068);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795336948197079180,'running',NULL,1,204527576);
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_retained ON jobs(ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX entries_by_job ON entries(job);
COMMIT;
